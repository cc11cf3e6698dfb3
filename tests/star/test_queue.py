"""Whose call is next, and whose rows join it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from covey.contracts.types import NO_INTS, DraftWork
from covey.drafters.calls import Call
from covey.drafters.queue import CREDIT, OVERDUE, DraftQueue, QueueLimits
from covey.drafters.speed import MARGIN, Speed
from covey.wire.ledger import CALLER_BITS, GROUP_BITS, INCARNATION_BITS

STEP = 0.002
MEMBER_BITS = CALLER_BITS - GROUP_BITS


def call(
    who: int,
    arrived: float = 0.0,
    rows: int = 1,
    depth: int = 4,
    patience: float = 0.0,
    *,
    server: int = 0,
) -> Call:
    """Of a server of its own, where none is given."""
    ones = np.ones(rows, np.int32)
    work = DraftWork(
        tags=np.arange(rows, dtype=np.int32),
        keep=ones,
        offsets=np.zeros(rows + 1, np.int32),
        tokens=NO_INTS,
        depth=ones * depth,
        width=ones,
        rounds=ones,
        origin=((server or who) << MEMBER_BITS | who) << INCARNATION_BITS,
        patience=patience,
    )
    return Call(work, f"{server or who}", arrived)


def measured() -> Speed:
    speed = Speed()
    speed.update(1, 1, STEP)
    return speed


def queue_of(calls: Sequence[Call], limits: QueueLimits | None = None, **weights: float) -> DraftQueue:
    queue = DraftQueue(limits or QueueLimits(), {name.strip("_"): weight for name, weight in weights.items()})
    for each in calls:
        queue.put(each)
    return queue


def test_whoever_has_least_time_left_goes_first_and_the_others_go_along() -> None:
    calls = [call(1, patience=0.5), call(2, patience=0.1), call(3)]
    queue = queue_of(calls)
    assert queue.take(0.0, measured()) == [calls[1], calls[0], calls[2]]
    assert queue.take(0.0, measured()) == []


def test_no_more_rows_than_a_pass_holds_and_one_call_of_a_sender() -> None:
    calls = [call(1, rows=3), call(1, rows=1), call(2, rows=3), call(3, rows=2)]
    queue = queue_of(calls, QueueLimits(rows=5))
    assert queue.take(0.0, measured()) == [calls[0], calls[3]]
    assert queue.take(0.0, measured()) == [calls[1], calls[2]]
    assert not len(queue)


def test_nobody_joins_who_would_make_another_late() -> None:
    speed = measured()
    deep, hasty = call(2, depth=32), call(1, depth=4, patience=MARGIN * 4 * STEP + 0.001)
    queue = queue_of([deep, hasty])
    assert queue.take(0.0, speed) == [hasty]
    assert queue.take(0.0, speed) == [deep]


def test_what_is_too_late_is_said_so_and_what_is_nearly_is_shortened() -> None:
    speed = measured()
    late, short = call(1, patience=0.9 * MARGIN * STEP), call(2, depth=8, patience=3.5 * MARGIN * STEP)
    queue = queue_of([late, short])
    assert queue.late(0.0, speed) == [late]
    assert queue.take(0.0, speed) == [short]
    assert short.work.depth.tolist() == [3]


def shares(weights: dict[str, float], depths: dict[int, int], turns: int) -> dict[int, float]:
    """Seconds of the drafter that each has had, of senders that always have a call waiting."""
    speed, had = measured(), dict.fromkeys(depths, 0.0)
    queue = DraftQueue(QueueLimits(rows=1, bound=1e9), weights)
    for who, depth in depths.items():
        queue.put(call(who, depth=depth))
    for _ in range(turns):
        (next_one,) = queue.take(0.0, speed, shared=False)
        seconds = next_one.depth * STEP
        queue.served([next_one], seconds)
        who = int(next_one.caller)
        had[who] += seconds
        queue.put(call(who, depth=depths[who]))
    return had


def test_time_is_shared_by_weight_however_large_the_calls_are() -> None:
    had = shares({"1": 1.0, "2": 1.0, "3": 2.0}, {1: 16, 2: 2, 3: 4}, 3000)
    assert had[2] / had[1] == pytest.approx(1.0, rel=0.05)
    assert had[3] / had[1] == pytest.approx(2.0, rel=0.05)


def test_who_was_away_for_long_does_not_make_up_for_it() -> None:
    speed = measured()
    queue = DraftQueue(QueueLimits(rows=1, bound=1e9))
    queue.put(call(2))
    queue.served(queue.take(0.0, speed, shared=False), 0.001)
    for _ in range(500):
        queue.put(call(1))
        queue.served(queue.take(0.0, speed, shared=False), 0.01)
    served = []
    queue.put(call(1))
    for _ in range(60):
        queue.put(call(2))
        (next_one,) = queue.take(0.0, speed, shared=False)
        queue.served([next_one], 0.01)
        served.append(int(next_one.caller))
        if served[-1] == 1:
            queue.put(call(1))
    assert served.index(1) <= CREDIT / 0.01 + 3


def test_nobody_starves_though_all_others_are_more_urgent() -> None:
    """A heavy sender far beyond its share waits, but not for ever."""
    speed = measured()
    queue = DraftQueue(QueueLimits(rows=1, bound=0.1))
    queue.put(call(1))
    queue.served(queue.take(0.0, speed, shared=False), 100.0)
    queue.put(call(2))
    queue.served(queue.take(0.0, speed, shared=False), 0.001)
    patient, now = call(1, arrived=0.0), 0.0
    queue.put(patient)
    while True:
        queue.put(call(2, arrived=now, patience=0.05))
        taken = queue.take(now, speed, shared=False)
        if taken == [patient]:
            break
        queue.served(taken, 0.008)
        now += 0.008
        assert now < 0.2


def test_a_server_gains_nothing_by_calling_under_many_names() -> None:
    """The share is the server's, and within the bound of waiting, too, it is one among others."""
    for bound, seconds in ((1e9, 0.01), (0.01, 0.01), (0.01, 1.0)):
        queue, speed, served, now = DraftQueue(QueueLimits(rows=1, bound=bound)), measured(), [0, 0, 0], 0.0
        for who in range(10):
            queue.put(call(who, server=1))
        queue.put(call(10, server=2))
        while sum(served) < 200:
            (next_one,) = queue.take(now, speed, shared=False)
            queue.served([next_one], seconds)
            now += seconds
            served[int(next_one.caller)] += 1
            who = next_one.who & ((1 << MEMBER_BITS) - 1)
            queue.put(call(who, arrived=now, server=int(next_one.caller)))
        assert served[2] == pytest.approx(100, abs=3), (bound, seconds)


def test_the_senders_of_one_server_take_turns() -> None:
    queue, speed, served = DraftQueue(QueueLimits(rows=1, bound=1e9)), measured(), []
    for who in range(1, 4):
        queue.put(call(who, server=1, patience=0.1 * who))
    for _ in range(12):
        (next_one,) = queue.take(0.0, speed, shared=False)
        queue.served([next_one], 0.01)
        served.append(next_one.who & ((1 << MEMBER_BITS) - 1))
        queue.put(call(served[-1], server=1, patience=0.1 * served[-1]))
    assert sorted(served) == sorted([1, 2, 3] * 4)


def test_no_call_holds_the_drafter_for_long_where_there_are_others() -> None:
    limits = QueueLimits(bound=0.1)
    alone = queue_of([call(1, depth=1000)], limits)
    assert alone.take(0.0, measured())[0].depth == 1000
    queue = queue_of([call(1, depth=1000), call(2)], limits)
    queue.served([queue.take(0.0, measured(), shared=False)[0]], 0.01)
    (deep,) = queue.take(0.0, measured(), shared=False)
    assert MARGIN * STEP * deep.depth <= OVERDUE * limits.bound
