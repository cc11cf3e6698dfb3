"""Serving in virtual time: a clock that jumps, and a loop that feeds requests as they fall due."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

from covey.engine import Engine
from covey.types import Request


class VirtualClock:
    """Implements `covey.ports.Clock` for one thread that lives in virtual time and the threads it waits for.

    The owner's `sleep` passes time for everybody. Another thread's starts where the owner last slept, so that drafters
    asked together work at the same time; the owner is as late as the latest of them.
    """

    def __init__(self) -> None:
        self._owner = threading.get_ident()
        self._lock = threading.Lock()
        self._base = 0.0
        self._reached = 0.0
        self._own = threading.local()  # another thread's time

    def now(self) -> float:
        with self._lock:
            if threading.get_ident() == self._owner:
                return max(self._base, self._reached)
            return max(self._base, getattr(self._own, "time", 0.0))

    def sleep(self, seconds: float) -> None:
        with self._lock:
            if threading.get_ident() == self._owner:
                self._base = max(self._base, self._reached) + seconds
                return
            self._own.time = max(self._base, getattr(self._own, "time", 0.0)) + seconds
            self._reached = max(self._reached, self._own.time)


def serve(engine: Engine, clock: VirtualClock, arrivals: Iterable[tuple[float, Request]]) -> None:
    """Rounds until every request, each submitted at its own time, has ended. The planner's and the engine's own time
    does not count."""
    due = deque(sorted(arrivals, key=lambda arrival: arrival[0]))
    while True:
        while due and due[0][0] <= clock.now():
            engine.submit(due.popleft()[1])
        if engine.round():
            continue
        if not due:
            return
        clock.sleep(due[0][0] - clock.now())
