"""Ends models' processes that run in circles and that nobody waits for within a time that is known.

Target and drafters are watched by those who call them (`covey.tritonio.stuck`), loads by `covey.server.loads`. Of the
others one thread takes Triton's requests and mostly sleeps. Where it never does, and no request is answered either, it
takes none any more. A question to each would tell as much and be counted as a request. On a machine that does much else
one that works slowly never sleeps either: it is to have run for a while, too.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from covey.server import processes
from covey.server.control import Control, ControlError
from covey.starved import times

LOOK_SECONDS = 1.0
BOUND_SECONDS, RAN_SECONDS = 6.0, 1.5  # without sleep, and of those with a processor
BUSY = 0.95  # share of the time in which the thread ran, or waited for a processor, at least
SLACK_SECONDS = 0.5  # of waiting that is not said yet
UNKNOWN = -1
BACKENDS = ("orchestrator", "router", "unary", "tokenizer")
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
    since: float
    times: tuple[float, float]  # that it had run and waited by then
    answered: int = UNKNOWN  # requests of its model, soon after


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
            if seen is None or not processes.lives(seen.pid):
                self._seen.pop(model, None)
                for pid in running.get(model, [])[:1]:
                    self._seen[model] = _Seen(pid, self._now(), times(pid))
            elif self._spins(model, seen):
                seconds = self._now() - seen.since
                log.warning("%s has run for %.0f s without an answer and is killed", model, seconds)
                processes.end([seen.pid])
                del self._seen[model]
                ended.append(model)
        return ended

    def _unknown(self) -> bool:
        return len(self._seen) < len(self._models) or not all(processes.lives(seen.pid) for seen in self._seen.values())

    def _spins(self, model: str, seen: _Seen) -> bool:
        """What a thread waits is said when it runs again: where it rarely does, a single look says little."""
        spent, seconds = times(seen.pid), self._now() - seen.since
        ran, waited = (now - then for now, then in zip(spent, seen.times))
        if ran + waited < BUSY * (seconds - SLACK_SECONDS):
            seen.since, seen.times, seen.answered = self._now(), spent, UNKNOWN
            return False
        late = seconds >= BOUND_SECONDS and ran >= RAN_SECONDS
        if not late and seen.answered != UNKNOWN:
            return False
        try:
            answered = self._control.answered(model)
        except ControlError:  # it is being reloaded
            answered = UNKNOWN
        if late and UNKNOWN != answered == seen.answered:
            return True
        if late:
            seen.since, seen.times = self._now(), spent
        seen.answered = answered
        return False
