from __future__ import annotations

import numpy as np
import pytest

from covey.contracts.types import LOOKUP, Offer, Trees
from covey.planner import offers
from covey.planner.offers import Offers
from covey.requests.active import ActiveRequest
from covey.requests.rounds import Drafted, Plan, Round, Times
from covey.requests.scheduler import Batch
from tests.fakes import request


def rows_of(*accepted: list[float]) -> list[ActiveRequest]:
    """Requests of three tokens with offers that promise so much."""
    found = []
    for key, each in enumerate(accepted, 1):
        active = ActiveRequest(request(key, [1, 2, 3], 50))
        active.offer = Offer(3, [9] * len(each), each)
        found.append(active)
    return found


def plan_of(rows: int, depth: int = 0) -> Plan:
    names = ("one",) * rows
    return Plan(np.full(rows, depth, np.int32), np.ones(rows, np.int32), names, ("fixed",) * rows)


def taken(
    of: Offers,
    rows: list[ActiveRequest],
    *,
    depth: int = 0,
    planned: float = 0.0,
    most: int = 8,
    value: float = 1.0,
) -> list[int]:
    """The depth of each row's offer that is taken, 0 where none is."""
    before = plan_of(len(rows), depth)
    after = of.taken(before, rows, 0.05, planned, most, value)
    assert before.depth.tolist() == [depth] * len(rows), "a plan does not change"
    mine = [name == LOOKUP for name in after.drafter]
    assert [why == offers.WHY for why in after.why] == mine
    return [count if own else 0 for count, own in zip(after.depth.tolist(), mine)]


def learn(of: Offers, plan: Plan, seconds: float, emitted: int, *, prompt: bool = False) -> None:
    rows = [ActiveRequest(request(key, [1], 9)) for key in range(1, len(plan.depth) + 1)]
    batch = Batch(rows + rows[:prompt], np.ones(len(rows) + prompt, np.int32), (), (), len(rows))
    drafted = Drafted(Trees.empty(len(rows)), np.ones(len(rows), np.bool_))
    done = Round(batch, plan, drafted, drafted.trees, None, emitted, Times(0.0, 0.0, seconds, 0.0), 0, 0, 0)  # type: ignore[arg-type]
    of.learn(done)


def test_as_much_is_taken_as_gains_most() -> None:
    of = Offers()
    assert taken(of, rows_of([0.9, 1.7, 2.4])) == [3]
    assert taken(of, rows_of([0.9, 1.7, 1.74])) == [2], "a third draft costs .05"
    assert taken(of, rows_of([0.9, 1.7, 2.4]), most=2) == [2]
    assert taken(of, rows_of([0.9, 1.7, 2.4]), most=0) == [0]
    assert taken(of, rows_of([])) == [0]
    rows = rows_of([0.9, 1.7, 2.4])
    rows[0].emit([5], 0.0)
    assert taken(of, rows) == [0], "what was offered for another text"


def test_where_nobody_drafts_all_offers_together_must_be_worth_it() -> None:
    of = Offers()
    assert taken(of, rows_of([0.4])) == [0], "a round with drafts costs half a plain one, before any was measured"
    assert taken(of, rows_of([0.6])) == [1]
    assert taken(of, rows_of([0.6], [], [], [])) == [0, 0, 0, 0]
    assert taken(of, rows_of([0.6, 1.2], [0.6, 1.2], [], [])) == [2, 2, 0, 0]


def test_while_others_wait_for_their_prompts_time_is_worth_more() -> None:
    assert taken(Offers(), rows_of([0.6, 1.2, 1.4]), value=1.0) == [3]
    assert taken(Offers(), rows_of([0.6, 1.2, 1.4]), value=2.1) == [3]
    assert taken(Offers(), rows_of([0.6, 1.2, 1.3]), value=2.1) == [2], "a third draft costs .105"
    assert taken(Offers(), rows_of([0.6, 1.2, 1.4]), value=3.0) == [0], "a round with drafts costs 1.5 tokens now"


def test_plain_rounds_that_drafts_slow_down_count_as_their_cost() -> None:
    """Rounds with offers cost a tenth, and each of the next plain ones a tenth as well."""
    of, plain, drafts = Offers(), plan_of(4), rows_of(*[[0.5]] * 4)
    for _ in range(60):
        for _ in range(20):
            learn(of, plain, 0.010, 4)
        took = of.taken(plan_of(4, 1), drafts, 0.05, 0.0, 8)
        learn(of, took, 0.011, 6)
        for _ in range(6):
            learn(of, plain, 0.011, 4)
    assert taken(of, rows_of([0.9], [0.9], [0.9], [])) == [0, 0, 0, 0], "2.7 tokens do not pay for .7 rounds of 4 rows"
    assert taken(of, rows_of([0.9], [0.9], [0.9], [0.9])) == [1, 1, 1, 1]


def test_who_drafts_takes_what_promises_more() -> None:
    of = Offers()
    assert taken(of, rows_of([0.4], [0.9, 1.8]), depth=3, planned=0.7) == [0, 2]
    assert taken(of, rows_of([0.4], [0.9, 1.8]), depth=3, planned=0.1) == [1, 2]


@pytest.mark.parametrize(("rows", "cost"), [(1, 0.1), (4, 0.8), (16, 0.3)])
def test_what_rounds_with_offers_cost_and_bring_is_measured(rows: int, cost: float) -> None:
    of = Offers()
    for _ in range(200):
        learn(of, plan_of(rows), 0.01, rows)
        plan = of.taken(plan_of(rows), rows_of(*[[0.9, 1.8, 2.7]] * rows), 0.05, 0.0, 8)
        if LOOKUP in plan.drafter:
            learn(of, plan, 0.01 * (1.0 + cost), rows + int(2 * rows))  # of 2.7 promised, 2
    size = of._size(rows)
    assert size.cost == pytest.approx(cost, rel=0.05)
    assert size.came / size.promised == pytest.approx(2 / 2.7, rel=0.05)
    just = cost / (2 / 2.7)
    assert taken(of, rows_of(*[[1.2 * just + 0.1]] * rows)) == [1] * rows
    assert taken(of, rows_of(*[[0.8 * just]] * rows)) == [0] * rows


def test_what_never_pays_is_tried_again_seldom() -> None:
    of = Offers()
    tried = [sum(taken(of, rows_of([0.3]))) for _ in range(3 * offers.AGAIN)]
    assert sum(tried) == 2
