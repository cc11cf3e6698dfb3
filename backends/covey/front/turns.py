"""Turns of callers at work that is done one after the other: next is whoever has had least of its time.

For example, a caller with a hundred texts of a second each and one that comes with a text of a millisecond: the second
is next when the text at hand is done, and then again, until it has had as much time as the first since it came.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from covey.front.failures import TooMany
from covey_client.errors import Overloaded

T = TypeVar("T")
LEAD_SECONDS = 0.05  # at most, that what a caller has had holds against it when it comes with nothing waiting
MOST_CALLERS = 10_000  # whose time is known: of more, those that came longest ago begin anew
BURST_SECONDS = 8.0  # of work at once, for who has had none for a while


@dataclass(frozen=True)
class Turn:
    """Whose work it is, and how many bytes wait for it."""

    caller: str
    size: int


@dataclass(eq=False)
class _Had:
    """What one caller has had."""

    seconds: float = 0.0  # in order of turns: nobody saves any up while it asks nothing
    owed: float = 0.0  # seconds beyond its share, as of `at`
    at: float = 0.0
    waiting: deque[tuple[asyncio.Future[None], int]] = field(default_factory=deque)

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.waiting)


class Turns:
    """At one worker."""

    def __init__(
        self,
        most_bytes: int,
        share: float,
        spent: Callable[[], float],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`most_bytes` wait for everybody, half of them for one caller. `share`: of a processor, that one caller may
        have for long. `spent`: the worker's seconds of it so far."""
        self._most, self._share, self._spent, self._now = most_bytes, share, spent, now
        self._callers: OrderedDict[str, _Had] = OrderedDict()
        self._waiting: dict[_Had, None] = {}  # those of them who wait, in the order in which they came
        self._passed = 0.0  # what who comes is taken to have had
        self._busy = False

    async def of(self, turn: Turn, work: Callable[[], Awaitable[T]]) -> T:
        """Do the work when it is the caller's turn. Raises TooMany, or Overloaded. Work that has begun is done to its
        end, also for a caller that leaves."""
        had = self._had(turn)
        if self._busy:
            await self._wait(had, turn.size)
        self._busy = True
        self._passed = max(self._passed, had.seconds)
        done = asyncio.ensure_future(self._done(had, work))
        done.add_done_callback(lambda task: task.cancelled() or task.exception())  # nobody asks it where they have left
        return await asyncio.shield(done)

    async def _done(self, had: _Had, work: Callable[[], Awaitable[T]]) -> T:
        before = self._spent()
        try:
            return await work()
        finally:
            took = self._spent() - before
            had.seconds += took
            had.owed += took
            self._next()

    def _had(self, turn: Turn) -> _Had:
        now = self._now()
        had = self._callers.pop(turn.caller, None) or _Had(at=now)
        self._callers[turn.caller] = had
        if len(self._callers) > MOST_CALLERS:
            idle = next((name for name, each in self._callers.items() if not each.waiting), turn.caller)
            del self._callers[idle]
        if had not in self._waiting:
            had.seconds = min(max(had.seconds, self._passed), self._passed + LEAD_SECONDS)
        had.owed, had.at = max(0.0, had.owed - self._share * (now - had.at)), now
        if had.owed > BURST_SECONDS:
            rest = max(1, round((had.owed - BURST_SECONDS) / self._share))
            raise TooMany(f"more than {self._share:.0%} of the time for texts for one caller; try again in {rest} s")
        if had.bytes + turn.size > self._most // 2:
            raise TooMany(f"more than {self._most // 2} bytes of texts wait for one caller; try again in 1 s")
        return had

    async def _wait(self, had: _Had, size: int) -> None:
        while sum(each.bytes for each in self._waiting) + size > self._most:
            most = max(self._waiting, key=lambda each: each.bytes)
            if most.bytes <= had.bytes + size:
                raise Overloaded(f"more than {self._most} bytes of texts wait; try again in 1 s")
            future, _ = self._taken(most, -1)  # its last: others of its own are nearer to their turns
            if not future.done():
                future.set_exception(TooMany("others have texts that wait, too, and less of them; try again in 1 s"))
        mine = asyncio.get_running_loop().create_future(), size
        had.waiting.append(mine)
        self._waiting[had] = None
        try:
            await mine[0]
        except asyncio.CancelledError:
            if mine in had.waiting:
                self._taken(had, had.waiting.index(mine))
            elif not mine[0].cancelled() and mine[0].exception() is None:  # it was to be next
                self._next()
            raise

    def _taken(self, had: _Had, place: int) -> tuple[asyncio.Future[None], int]:
        """One that waits no longer."""
        found = had.waiting[place]
        del had.waiting[place]
        if not had.waiting:
            del self._waiting[had]
        return found

    def _next(self) -> None:
        """Whose turn it is has it before anybody who comes meanwhile."""
        self._busy = False
        while self._waiting and not self._busy:
            future, _ = self._taken(min(self._waiting, key=lambda each: each.seconds), 0)
            if not future.done():
                future.set_result(None)
                self._busy = True
