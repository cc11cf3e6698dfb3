"""Ends models' processes that run in circles and that nobody waits for within a time that is known.

Target and drafters are watched by those who call them (`covey.tritonio.stuck`), loads by `covey.server.loads`. Of the
others one thread takes Triton's requests and mostly sleeps. Where it never does, and no request is answered either, it
takes none any more. A question to each would tell as much and be counted as a request. On a machine that does much else
one that works slowly never sleeps either: it is to have run for a while, too.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from covey.server import processes
from covey.server.control import Control, ControlError
from covey.starved import times

LOOK_SECONDS = 1.0
BOUND_SECONDS, RAN_SECONDS = 6.0, 1.5  # without sleep, and of those with a processor
BUSY = 0.9  # share of the time between two looks in which the thread ran, or waited for a processor, at least
BACKENDS = ("orchestrator", "router", "unary", "controller", "tokenizer")
_BACKEND = re.compile(r'^\s*backend:\s*"(\w+)"', re.MULTILINE)
log = logging.getLogger("covey.spinning")


def watched(repository: Path, models: Iterable[str]) -> tuple[str, ...]:
    """Those of `models` whose processes may be judged so: of other backends nothing is known."""
    found = ((name, _BACKEND.search((repository / name / "config.pbtxt").read_text())) for name in models)
    return tuple(name for name, backend in found if backend and backend[1] in BACKENDS)


@dataclass
class _Seen:
    """A process that has been busy since an earlier look."""

    pid: int
    at: float  # the last look
    times: tuple[float, float]  # that it had run and waited by then
    seconds: float = 0.0
    ran: float = 0.0  # of those
    answered: int = -1  # requests of its model, when it began to be busy


class Spinning:
    """Owns for how long each process has been busy. Looked at by one thread."""

    def __init__(
        self, control: Control, server: int, models: Iterable[str], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._control, self._server, self._models, self._now = control, server, tuple(models), now
        self._seen: dict[str, _Seen] = {}

    def look(self) -> list[str]:
        """Called every LOOK_SECONDS: end who spins; returns the models."""
        ended = []
        running = processes.by_model(self._server) if self._unknown() else {}
        for model in self._models:
            seen = self._seen.get(model)
            if seen is None or not any(times(seen.pid)):
                living = [pid for pid in running.get(model, ()) if not processes.is_zombie(pid)]
                self._seen.pop(model, None)
                if living:
                    self._seen[model] = _Seen(living[0], self._now(), times(living[0]))
            elif self._spins(model, seen):
                log.warning("%s has run for %.0f s without an answer and is killed", model, seen.seconds)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(seen.pid, signal.SIGKILL)
                del self._seen[model]
                ended.append(model)
        return ended

    def _unknown(self) -> bool:
        return len(self._seen) < len(self._models) or not all(any(times(seen.pid)) for seen in self._seen.values())

    def _spins(self, model: str, seen: _Seen) -> bool:
        (ran, waited), (at, now) = seen.times, (seen.at, self._now())
        seen.times, seen.at = times(seen.pid), now
        ran, waited = seen.times[0] - ran, seen.times[1] - waited
        if ran + waited < BUSY * (now - at):
            seen.seconds = seen.ran = 0.0
            return False
        late = seen.seconds + LOOK_SECONDS >= BOUND_SECONDS and seen.ran + ran >= RAN_SECONDS
        if not seen.seconds or late:
            try:
                answered = self._control.answered(model)
            except ControlError:  # it is being reloaded
                seen.seconds = seen.ran = 0.0
                return False
            if answered != seen.answered:
                seen.seconds, seen.ran, seen.answered, late = 0.0, 0.0, answered, False
        seen.seconds, seen.ran = seen.seconds + LOOK_SECONDS, seen.ran + ran
        return late
