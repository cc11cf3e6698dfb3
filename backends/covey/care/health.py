"""The health of one living process of a server, in the seconds by which rules judge it (`covey.care.rules`).

Seconds are those of looks: while the looking process did not run, others may not have run either. Seconds in which a
process wanted a processor and had none count for a fifth (`covey.care.starved`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from covey.care import processes
from covey.care.control import LOADING, READY
from covey.care.starved import Starved, times

BUSY = 0.95  # share of the time in which a thread that never sleeps ran, or waited for a processor, at least
SLACK_SECONDS = 0.5  # the kernel tells what a thread waits when it runs again
ASLEEP = 0.01  # share of the time that one has at most of a processor which does nothing

Answered = Callable[["Health"], "int | None"]


@dataclass
class Health:
    """The health of one process. `look` follows it; `answers` may excuse it."""

    name: str  # of its model, or of the server
    pid: int
    # How many requests its model has answered, or how far it has come while it loads; None where that is not known.
    answered: Answered
    ended: bool = False  # it was killed, and the kernel has not said that it has ended yet
    paused: float = 0.0  # by SIGSTOP
    loading: float = 0.0
    asleep: float = 0.0  # while it loads: since it last used a processor
    busy: float = 0.0  # since its first thread, which takes Triton's requests, slept or answered one
    ran: float = 0.0  # ... of which it had a processor
    _spent: float = 0.0  # seconds of processors that it and its children had when it was last idle
    _starved: Starved = field(default_factory=Starved, repr=False)
    _slept: tuple[float, float] | None = None  # what the first thread had run and waited when `busy` began
    _answers: int | None = None  # soon after that

    def look(self, seconds: float, state: str, *, judged: bool) -> None:
        """Note what became of the process in so many seconds. `state` is Triton's state of its model, or LOADING for a
        server that loads its first ones; `judged` says whether it may not be busy for long without an answer."""
        self.paused = self.paused + seconds if processes.state(self.pid) == "T" else 0.0
        if state == LOADING:
            counted = self._starved.counted([self.pid], seconds)
            self.loading += counted
            self.asleep = self.asleep + counted if self._idle(seconds) else 0.0
        else:
            self.loading = self.asleep = 0.0
        if judged and state in (READY, LOADING):
            self._look_busy(seconds)
        else:
            self._rested(None)

    def _idle(self, seconds: float) -> bool:
        """Return whether neither the process nor its children, for which it may wait, use a processor."""
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
        """Return whether the model has answered a request since it became busy, or come further with its load, or
        whether that is not known. If so, count the process as busy from now on."""
        now = self.answered(self)
        if now is not None and now == self._answers:
            return False
        self._rested(times(self.pid))
        self._answers = now
        return True

    def _rested(self, spent: tuple[float, float] | None) -> None:
        """Note that the process is not busy: its first thread had run and waited for so long by then."""
        self.busy, self.ran, self._slept, self._answers = 0.0, 0.0, spent, None
