"""Work of many callers at one worker: in turns, within bounds, and never lost."""

from __future__ import annotations

import asyncio

import pytest

from covey.front.failures import TooMany, kind
from covey.front.fair_queue import FairQueue, Job
from covey_client.errors import Overloaded


class Bench:
    """A worker that notes whom it has served."""

    def __init__(self, most_bytes: int = 1000) -> None:
        self.done = list[str]()
        self.queue = FairQueue(most_bytes)
        self.working, self.open = 0, asyncio.Event()
        self.open.set()

    def task(self, caller: str, size: int = 1) -> asyncio.Task[str]:
        async def work() -> str:
            self.working += 1
            assert self.working == 1
            for _ in range(9):  # in which who has been served comes again
                await asyncio.sleep(0)
            await self.open.wait()
            self.done.append(caller)
            self.working -= 1
            return caller

        return asyncio.ensure_future(self.queue.run(Job(caller, size), work))


async def test_callers_that_come_again_as_soon_as_they_are_served_starve_nobody_who_waits() -> None:
    bench = Bench()

    async def again_and_again(caller: str) -> None:
        for _ in range(30):
            await bench.task(caller)

    several = [bench.task("several") for _ in range(8)]
    await asyncio.sleep(0)
    await asyncio.gather(*several, *(again_and_again(each) for each in ("one", "other")))
    until = len(bench.done) - 1 - bench.done[::-1].index("several")
    assert abs(bench.done[:until].count("one") - bench.done[:until].count("several")) <= 2


async def test_what_waits_is_bounded_and_half_is_for_one_caller() -> None:
    bench = Bench(most_bytes=100)
    bench.open.clear()
    told = [bench.task("a")]
    for caller, size in (("a", 25), ("a", 25), ("a", 1), ("b", 50), ("c", 1)):
        told.append(bench.task(caller, size=size))
        await asyncio.sleep(0)
    bench.open.set()
    await asyncio.wait(told)
    whole, room = told[3].exception(), told[5].exception()
    assert isinstance(whole, TooMany)
    assert kind(whole).http == 429
    assert "more than 50 bytes" in str(whole)
    assert type(room) is Overloaded
    assert bench.done == ["a", "b", "a", "a"]


async def test_who_leaves_takes_no_turn_along() -> None:
    bench = Bench()
    tasks = [bench.task("a"), bench.task("b"), bench.task("c"), bench.task("d")]
    await asyncio.sleep(0)
    tasks[0].cancel()  # it has begun, and is done to its end
    tasks[2].cancel()
    assert await tasks[1] == "b"
    assert await tasks[3] == "d"
    assert bench.done == ["a", "b", "d"]
    again = [bench.task("a"), bench.task("b"), bench.task("c")]
    while not bench.done[3:]:
        await asyncio.sleep(0)
    again[1].cancel()  # at the moment in which it is to begin
    assert await again[2] == "c"
    assert bench.queue._served is None
    assert not bench.queue._waiting


async def test_work_that_fails_ends_its_turn() -> None:
    bench = Bench()

    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await bench.queue.run(Job("a", 1), fail)
    assert await bench.task("a") == "a"
