"""Runs one job after another, with callers taking turns.

For example, one caller has a hundred texts waiting when another comes. The newcomer's first text follows the running
job, and then the two callers alternate.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from covey.front.failures import TooMany
from covey_client.errors import Overloaded

T = TypeVar("T")


@dataclass(frozen=True)
class Job:
    """A piece of work: its caller, and the bytes that it holds while it waits."""

    caller: str
    size: int


class FairQueue:
    """The queue of one worker."""

    def __init__(self, most_bytes: int) -> None:
        """At most `most_bytes` may wait, half of them for one caller."""
        self._most = most_bytes
        self._waiting: dict[str, deque[tuple[asyncio.Future[None], int]]] = {}  # by caller, in order of turns
        self._served: str | None = None  # the caller of the running job

    async def run(self, job: Job, work: Callable[[], Awaitable[T]]) -> T:
        """Run the work when the caller's turn comes. Raises TooMany or Overloaded. Work that has begun is finished,
        even if its caller leaves."""
        if self._served is not None:
            await self._wait(job)
        self._served = job.caller
        done = asyncio.ensure_future(self._done(work))
        done.add_done_callback(lambda task: task.cancelled() or task.exception())  # for callers that left
        return await asyncio.shield(done)

    async def _done(self, work: Callable[[], Awaitable[T]]) -> T:
        try:
            return await work()
        finally:
            self._next()

    async def _wait(self, job: Job) -> None:
        if self._bytes(job.caller) + job.size > self._most // 2:
            raise TooMany(f"more than {self._most // 2} bytes of texts wait for one caller; try again in 1 s")
        if sum(map(self._bytes, self._waiting)) + job.size > self._most:
            raise Overloaded(f"more than {self._most} bytes of texts wait; try again in 1 s")
        mine = asyncio.get_running_loop().create_future(), job.size
        self._waiting.setdefault(job.caller, deque()).append(mine)
        try:
            await mine[0]
        except asyncio.CancelledError:
            if mine in self._waiting.get(job.caller, ()):
                self._taken(job.caller, self._waiting[job.caller].index(mine))
            elif not mine[0].cancelled():  # it had the next turn
                self._next()
            raise

    def _bytes(self, caller: str) -> int:
        return sum(size for _, size in self._waiting.get(caller, ()))

    def _taken(self, caller: str, place: int) -> tuple[asyncio.Future[None], int]:
        """Remove one waiting job."""
        waiting = self._waiting[caller]
        found = waiting[place]
        del waiting[place]
        if not waiting:
            del self._waiting[caller]
        return found

    def _next(self) -> None:
        """Start the next job, before any newcomer's."""
        if self._served in self._waiting:  # its next turn comes after the others'
            self._waiting[self._served] = self._waiting.pop(self._served)
        self._served = None
        while self._waiting and self._served is None:
            caller = next(iter(self._waiting))
            future, _ = self._taken(caller, 0)
            if not future.done():
                future.set_result(None)
                self._served = caller
