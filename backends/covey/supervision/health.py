"""The health of one living process of a server, as seconds that `covey.supervision.rules` compares with bounds.

Seconds are sums of looks: while the looking process did not run, others may not have run either. Seconds in which a
process was starved of a processor count a fifth (`covey.supervision.starved`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from covey.supervision import processes
from covey.supervision.control import LOADING, READY
from covey.supervision.starved import Starved, times

BUSY = 0.95  # a thread that ran, or waited for a processor, for this share of the time never sleeps
SLACK_SECONDS = 0.5  # the kernel updates a thread's waiting time only when the thread runs again
ASLEEP = 0.01  # a process that used at most this share of a processor is asleep

Answered = Callable[["Health"], "int | None"]


@dataclass
class Health:
    """The health of one process. `look` updates it; `answers` may excuse a busy one."""

    name: str  # of its model, or of the server
    pid: int
    # How many requests its model has answered, or a counter of its progress while it loads; None if unknown.
    answered: Answered
    ended: bool = False  # it was killed, but the kernel has not reported its end yet
    paused: float = 0.0  # seconds stopped by SIGSTOP
    loading: float = 0.0
    asleep: float = 0.0  # while it loads: seconds since it last used a processor
    busy: float = 0.0  # seconds since its first thread, which takes Triton's requests, slept or answered one
    ran: float = 0.0  # seconds of `busy` in which that thread had a processor
    _spent: float = 0.0  # processor seconds of the process and its children when it was last idle
    _starved: Starved = field(default_factory=Starved, repr=False)
    _slept: tuple[float, float] | None = None  # the first thread's (ran, waited) when `busy` began
    _answers: int | None = None  # `answered` soon after `busy` began

    def look(self, seconds: float, state: str, *, mostly_idle: bool) -> None:
        """Account for the last `seconds`. `state` is Triton's state of the model, or LOADING for a server that loads
        its first models. If `mostly_idle`, the process must not be busy for long without an answer."""
        self.paused = self.paused + seconds if processes.state(self.pid) == "T" else 0.0
        if state == LOADING:
            counted = self._starved.counted([self.pid], seconds)
            self.loading += counted
            self.asleep = self.asleep + counted if self._idle(seconds) else 0.0
        else:
            self.loading = self.asleep = 0.0
        if mostly_idle and state in (READY, LOADING):
            self._look_busy(seconds)
        else:
            self._rested(None)

    def _idle(self, seconds: float) -> bool:
        """Return whether the process and its children, for which it may wait, use no processor."""
        if self._starved.ran >= ASLEEP * seconds:
            return False
        before, self._spent = self._spent, processes.spent(self.pid)
        return self._spent - before < ASLEEP * seconds

    def _look_busy(self, seconds: float) -> None:
        spent = times(self.pid)
        if self._slept is None:
            self._slept = spent
            return
        self.busy += seconds
        self.ran, waited = spent[0] - self._slept[0], spent[1] - self._slept[1]
        if self.ran + waited < BUSY * (self.busy - SLACK_SECONDS):
            self._rested(spent)
        elif self._answers is None and self.busy > SLACK_SECONDS:
            self._answers = self.answered(self)

    def answers(self) -> bool:
        """Return whether the model has answered a request or loaded further since it became busy; True also if that is
        unknown. If so, restart its busy time now."""
        now = self.answered(self)
        if now is not None and now == self._answers:
            return False
        self._rested(times(self.pid))
        self._answers = now
        return True

    def _rested(self, spent: tuple[float, float] | None) -> None:
        """Restart the busy time. `spent` is the first thread's (ran, waited) now, or None if it was not looked at."""
        self.busy, self.ran, self._slept, self._answers = 0.0, 0.0, spent, None
