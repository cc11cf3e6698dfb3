"""Serves one job after another by fair queueing: next is the caller that has had the least of the worker's time.

For example, one caller has a hundred texts of a second each, and another comes with texts of a millisecond: its next
text follows the one at hand, until it has had as much time as the first since it came.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from covey.front.failures import TooMany
from covey_client.errors import Overloaded

T = TypeVar("T")


@dataclass(frozen=True)
class Job:
    """A piece of work: the caller that wants it, and how many bytes it holds in memory while it waits."""

    caller: str
    size: int


@dataclass(eq=False)
class _Account:
    """A caller that is served or waits, the time that it has had since it came, and its waiting jobs."""

    caller: str
    seconds: float  # by which callers are served, the least first; from what a caller had on average when it came
    waiting: deque[tuple[asyncio.Future[None], int]] = field(default_factory=deque)

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.waiting)


class FairQueue:
    """The queue before one worker."""

    def __init__(self, most_bytes: int, spent: Callable[[], float]) -> None:
        """`most_bytes` may wait for everybody, half of them for one caller. `spent` says how many seconds of a
        processor the worker has used so far."""
        self._most, self._spent = most_bytes, spent
        self._waiting: dict[str, _Account] = {}  # by caller, in the order in which they came
        self._served: _Account | None = None
        self._passed = 0.0  # `seconds` of a caller that comes anew: each job's time, shared by all who were there

    async def run(self, job: Job, work: Callable[[], Awaitable[T]]) -> T:
        """Do the work when the caller is next. Raises TooMany, or Overloaded. Work that has begun is finished, also for
        a caller that leaves."""
        account = self._waiting.get(job.caller) or self._served
        if account is None or account.caller != job.caller:
            account = _Account(job.caller, self._passed)
        if account.bytes + job.size > self._most // 2:
            raise TooMany(f"more than {self._most // 2} bytes of texts wait for one caller; try again in 1 s")
        if self._served is not None:
            await self._wait(account, job.size)
        self._served = account
        done = asyncio.ensure_future(self._done(account, work))
        done.add_done_callback(lambda task: task.cancelled() or task.exception())  # nobody asks it where they have left
        return await asyncio.shield(done)

    async def _done(self, account: _Account, work: Callable[[], Awaitable[T]]) -> T:
        before = self._spent()
        try:
            return await work()
        finally:
            took = self._spent() - before
            account.seconds += took
            self._passed += took / len({account.caller, *self._waiting})
            self._next()

    async def _wait(self, account: _Account, size: int) -> None:
        while sum(each.bytes for each in self._waiting.values()) + size > self._most:
            most = max(self._waiting.values(), key=lambda each: each.bytes)
            if most.bytes <= account.bytes + size:
                raise Overloaded(f"more than {self._most} bytes of texts wait; try again in 1 s")
            future, _ = self._taken(most, -1)  # its last: others of its own are nearer to their turns
            if not future.done():
                future.set_exception(TooMany("others have texts that wait, too, and less of them; try again in 1 s"))
        mine = asyncio.get_running_loop().create_future(), size
        account.waiting.append(mine)
        self._waiting[account.caller] = account
        try:
            await mine[0]
        except asyncio.CancelledError:
            if mine in account.waiting:
                self._taken(account, account.waiting.index(mine))
            elif not mine[0].cancelled() and mine[0].exception() is None:  # it was to be next
                self._next()
            raise

    def _taken(self, account: _Account, place: int) -> tuple[asyncio.Future[None], int]:
        """Remove one waiting job."""
        found = account.waiting[place]
        del account.waiting[place]
        if not account.waiting:
            del self._waiting[account.caller]
        return found

    def _next(self) -> None:
        """Begin the next job, before any that comes meanwhile."""
        self._served = None
        while self._waiting and self._served is None:
            account = min(self._waiting.values(), key=lambda each: each.seconds)
            future, _ = self._taken(account, 0)
            if not future.done():
                future.set_result(None)
                self._served = account
