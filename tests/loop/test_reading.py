from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from itertools import count

import numpy as np
import pytest

from covey.contracts.errors import PortError
from covey.contracts.ports import Drafter
from covey.contracts.types import DraftReply, DraftWork
from covey.loop.channel import Channel
from covey.loop.configuration import EngineConfig, EngineHooks
from covey.loop.drafting import Drafting
from covey.loop.engine import Engine
from covey.requests.active import ActiveRequest
from covey.requests.roster import Roster
from covey.requests.rounds import Judge, Plan
from covey.requests.scheduler import Batch, Scheduler
from tests.fakes import Collector, HashTarget, ManualClock, continuation, request
from tests.loop.hash_drafters import HashDrafter, Judging, WithReaders, read_out, watched
from tests.static_planner import StaticPlanner


def reading(planner: StaticPlanner, drafters: dict[str, Drafter], count: int = 40) -> Collector:
    engine, target, sink = watched(planner, drafters)
    for key in range(1, 5):
        engine.submit(request(key, [key, 5], count, drafter="one"))
    rounds = 0
    while engine.round():
        read_out(engine)
        rounds += 1
        assert rounds < 1000
    for key in range(1, 5):
        assert sink.tokens[key] == continuation([key, 5], count)
    assert target.used == 0
    return sink


@pytest.mark.parametrize("budget", [1000, 7])
def test_a_drafter_reads_what_others_drafted_and_says_what_it_would_have_drawn(budget: int) -> None:
    one, two = HashDrafter(0.6), Judging()
    planner = WithReaders("two", budget)
    reading(planner, {"one": one, "two": two})
    assert not any(work.depth.any() for work in two.works)
    assert all(work.judging is None for work in one.works)
    assert set(planner.judgements) == {1, 2, 3, 4}
    for judged in planner.judgements.values():
        assert judged.start == 2
        assert judged.hits == [1] * len(judged.hits)
        assert judged.end == judged.read
    assert max(judged.end for judged in planner.judgements.values()) > (30 if budget == 1000 else 10)


def test_who_reads_and_then_drafts_is_told_everything_once() -> None:
    both = Judging()
    reading(WithReaders("one", 1000), {"one": both})
    told: dict[int, int] = {}
    for work in both.works:
        for opening in work.opens:
            assert opening.tag not in told
            told[opening.tag] = len(opening.tokens)
        for tag, keep, new in zip(work.tags.tolist(), work.keep.tolist(), np.diff(work.offsets).tolist()):
            assert keep == told[tag], "told again, or with a gap"
            told[tag] += new


def test_a_forgetful_reader_is_told_again_and_what_it_says_then_stands_alone() -> None:
    planner = WithReaders("two", 1000)
    reading(planner, {"one": HashDrafter(0.6), "two": Judging(forget=0.2)})
    assert all(set(judged.hits) <= {1} for judged in planner.judgements.values())
    assert all(judged.end <= 42 for judged in planner.judgements.values())


def test_a_call_that_reads_outlives_its_round_and_nobody_waits() -> None:
    planner, reader = WithReaders("two", 1000), Judging()
    let = threading.Event()
    reader.before = let.wait
    engine, _target, sink = watched(planner, {"one": HashDrafter(1.0), "two": reader})
    engine.submit(request(1, [1, 5], 40, drafter="one"))
    while engine.round():
        pass
    assert sink.tokens[1] == continuation([1, 5], 40)
    assert engine.roster.serves("two"), "it is not late: it reads"
    assert not reader.works
    let.set()
    engine.submit(request(2, [2, 5], 40, drafter="two"))
    while engine.round():
        pass
    assert sink.tokens[2] == continuation([2, 5], 40)
    assert sink.ended[2].accepted > 20
    assert 1 not in reader.tokens, "freed with the next call"


def test_a_reader_that_fails_rests_and_is_told_again() -> None:
    class Failing(Judging):
        fails = 1

        def draft(self, work: DraftWork) -> DraftReply:
            if work.judging is not None and len(self.works) == 3 and self.fails:
                self.fails -= 1
                raise PortError("no")
            return super().draft(work)

    reader, failures = Failing(), []
    target, sink = HashTarget(), Collector()
    scheduler = Scheduler(max_running=8, max_waiting=64, token_budget=64, growth_tokens=8, block_size=target.block_size)
    clock = ManualClock()
    engine = Engine(
        target,
        scheduler,
        WithReaders("two", 1000),
        sink,
        clock,
        EngineConfig({"one": HashDrafter(0.6), "two": reader}, draft_deadline=60.0),
        EngineHooks(drafter_failed=lambda name, _error: failures.append(name)),
    )
    engine.submit(request(1, [1, 5], 60, drafter="one"))
    while engine.round():
        read_out(engine)
        clock.sleep(0.1)
    assert sink.tokens[1] == continuation([1, 5], 60)
    assert failures == ["two"]
    assert sum(len(work.opens) for work in reader.works) == 2, "opened again after it failed"
    assert len(reader.works) > 4


def test_a_call_that_reads_counts_before_the_late_one_behind_it() -> None:
    """Both may end while the engine looks from the one to the other."""

    class Ending(Future[DraftReply]):
        def __init__(self, looks: int) -> None:
            super().__init__()
            self.looks = looks

        def done(self) -> bool:
            self.looks -= 1
            return self.looks < 0

    class Both:
        """Implements `covey.process.worker.Worker`."""

        def submit(self, call: Callable[[DraftWork], DraftReply], work: DraftWork) -> Future[DraftReply]:
            future = Ending(work.judging is not None)
            if work.judging is not None:
                future.set_result(call(work))
                return future
            future.exception = lambda _left=None: late(future, call, work)  # type: ignore[method-assign]
            return future

        def close(self) -> None: ...

    def late(future: Ending, call: Callable[[DraftWork], DraftReply], work: DraftWork) -> None:
        if not future.looks:
            raise FutureTimeout
        future.set_result(call(work))

    drafter, active = Judging(), ActiveRequest(request(1, [1, 5], 40))
    clock, batch = ManualClock(), Batch([active], np.ones(1, np.int32), (), (), 1)
    roster = Roster(["one"], clock)
    channel = Channel("one", drafter, roster, clock, None, 0, count(1), lambda: None, lambda _name: Both())
    drafting = Drafting({"one": channel}, roster, clock, 0.1)
    none = np.zeros(1, np.int32)
    drafting.read(batch, [Judge("one", none, none + 2, 100)])
    active.emit([7, 8, 9], 0.0)
    drafting.draft(batch, Plan(none + 2, none + 1, ("one",)), lambda: None)
    for _ in range(2):
        drafting.settle()
    assert active.seen["one"] == active.num_tokens == 5
