"""Ends models' processes that run in circles and that nobody waits for within a time that is known.

Target and drafters are watched by those who call them (`covey.tritonio.stuck`), loads by `covey.server.loads`. Of the
others one thread takes Triton's requests and mostly sleeps. Where it never does, and no request is answered either, it
takes none any more. A question to each would tell as much and be counted as a request.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from covey.server import processes
from covey.server.control import Control, ControlError
from covey.starved import occupied

LOOK_SECONDS = 1.0
BOUND_SECONDS = 6.0
BUSY = 0.9  # share of the time between two looks in which the thread ran, or waited for a processor
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
    occupied: float  # seconds, at the last look
    seconds: float = 0.0
    answered: int = -1  # requests of its model, when it began to be busy


class Spinning:
    """Owns for how long each process has been busy. Looked at by one thread."""

    def __init__(self, control: Control, server: int, models: Iterable[str]) -> None:
        self._control, self._server, self._models = control, server, tuple(models)
        self._seen: dict[str, _Seen] = {}

    def look(self) -> list[str]:
        """Called every LOOK_SECONDS: end who spins; returns the models."""
        ended = []
        running = processes.by_model(self._server) if self._unknown() else {}
        for model in self._models:
            seen = self._seen.get(model)
            if seen is None or not occupied(seen.pid):
                living = [pid for pid in running.get(model, ()) if not processes.is_zombie(pid)]
                self._seen.pop(model, None)
                if living:
                    self._seen[model] = _Seen(living[0], occupied(living[0]))
            elif self._spins(model, seen):
                log.warning("%s has run for %.0f s without an answer and is killed", model, seen.seconds)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(seen.pid, signal.SIGKILL)
                del self._seen[model]
                ended.append(model)
        return ended

    def _unknown(self) -> bool:
        return len(self._seen) < len(self._models) or not all(occupied(seen.pid) for seen in self._seen.values())

    def _spins(self, model: str, seen: _Seen) -> bool:
        before, seen.occupied = seen.occupied, occupied(seen.pid)
        if seen.occupied - before < BUSY * LOOK_SECONDS:
            seen.seconds = 0.0
            return False
        if not seen.seconds or seen.seconds + LOOK_SECONDS >= BOUND_SECONDS:
            try:
                answered = self._control.answered(model)
            except ControlError:  # it is being reloaded
                seen.seconds = 0.0
                return False
            seen.seconds, seen.answered = (seen.seconds if answered == seen.answered else 0.0), answered
        seen.seconds += LOOK_SECONDS
        return seen.seconds >= BOUND_SECONDS
