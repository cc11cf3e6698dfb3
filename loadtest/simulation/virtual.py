"""Serves in virtual time: a clock that jumps, and a loop that feeds requests as they fall due."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial
from typing import TypeVar

from covey.contracts.types import Request
from covey.loop.engine import Engine
from covey.process.worker import Worker

A = TypeVar("A")
R = TypeVar("R")
T = TypeVar("T")


class VirtualClock:
    """Implements `covey.contracts.ports.Clock` for one thread: `sleep` passes time. `worker` runs drafters in
    parallel."""

    def __init__(self) -> None:
        self._time = 0.0

    def now(self) -> float:
        return self._time

    def sleep(self, seconds: float) -> None:
        self._time += seconds

    def until(self, time: float) -> None:
        """Pass the time until then, if it is not over."""
        self._time = max(self._time, time)

    def worker(self, _name: str) -> Worker:
        """Return a worker whose calls take virtual time in parallel to the thread and to other workers."""
        return _VirtualWorker(self)

    def run(self, start: float, call: Callable[[], T]) -> tuple[T, float]:
        """Return the call's result, and when it ends if it begins at `start`. Passes no time of the caller's."""
        now, self._time = self._time, start
        try:
            return call(), self._time
        finally:
            self._time = now


class _VirtualWorker:
    """Implements `covey.process.worker.Worker`: one call after the other, each done at once in the caller's thread."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._free = 0.0  # when the last call ends

    def submit(self, call: Callable[[A], R], argument: A) -> Future[R]:
        future: Future[R] = Future()
        start = max(self._free, self._clock.now())
        ended, self._free = self._clock.run(start, partial(_ended, call, argument, future))
        return _Due(ended, self._clock, self._free)

    def close(self) -> None:
        """Nothing runs."""


def _ended(call: Callable[[A], R], argument: A, future: Future[R]) -> Future[R]:
    try:
        future.set_result(call(argument))
    except Exception as error:
        future.set_exception(error)
    return future


class _Due(Future[R]):
    """Holds a result that is there from some time on: waiting for it passes the time until then."""

    def __init__(self, ended: Future[R], clock: VirtualClock, due: float) -> None:
        super().__init__()
        self._clock = clock
        self._due = due
        error = ended.exception()
        if error is None:
            self.set_result(ended.result())
        else:
            self.set_exception(error)

    def done(self) -> bool:
        return self._clock.now() >= self._due

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._wait(timeout)
        return super().exception()

    def result(self, timeout: float | None = None) -> R:
        self._wait(timeout)
        return super().result()

    def _wait(self, timeout: float | None) -> None:
        limit = math.inf if timeout is None else self._clock.now() + timeout
        self._clock.until(min(self._due, limit))
        if self._due > limit:
            raise FutureTimeout


def serve(
    engine: Engine, clock: VirtualClock, arrivals: Iterable[tuple[float, Request]], until: float = math.inf
) -> None:
    """Run rounds until every request, each submitted at its own time, has ended, or the time is up. The planner's and
    the engine's own time does not count."""
    due = deque(sorted(arrivals, key=lambda arrival: arrival[0]))
    while clock.now() < until:
        while due and due[0][0] <= clock.now():
            engine.submit(due.popleft()[1])
        if engine.round():
            continue
        if not due:
            return
        gap = due[0][0] - clock.now()
        clock.sleep(gap if engine.memory is None else min(gap, engine.memory.pause))
