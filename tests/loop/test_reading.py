from __future__ import annotations

import threading

import numpy as np
import pytest

from covey.contracts.ports import Drafter
from tests.fakes import Collector, continuation, request
from tests.loop.hash_drafters import HashDrafter, Judging, WithReaders, read_out, serving
from tests.static_planner import StaticPlanner


def reading(planner: StaticPlanner, drafters: dict[str, Drafter], count: int = 40) -> Collector:
    engine, target, sink = serving(drafters, planner)
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
    engine, _target, sink = serving({"one": HashDrafter(1.0), "two": reader}, planner)
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
