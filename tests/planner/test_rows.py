"""The depth and width that each row of a batch gets, with any planner."""

from __future__ import annotations

import numpy as np

from covey.contracts.types import DrafterInfo, Rule, Sampling
from covey.planner.drafters.policy import Assignment
from covey.planner.round_planner import situation_of
from covey.planner.rows import draft_tokens, lay_out
from covey.requests.active import ActiveRequest
from covey.requests.roster import Roster
from covey.requests.scheduler import Batch
from tests.fakes import ManualClock, request


def test_rows_under_the_rejection_rule_get_chains() -> None:
    rules = (Rule.COUPLED, Rule.REJECTION, Rule.COUPLED)
    rows = [ActiveRequest(request(key, [1], 9, sampling=Sampling(rule=rule))) for key, rule in enumerate(rules)]
    choice = lay_out(
        Batch(rows, np.ones(3, np.int32), (), (), 3), ["draft"] * 3, Roster(["draft"], ManualClock()), 64, 3, 4
    )
    assert choice.width.tolist() == [4, 1, 4]
    assert choice.depth.tolist() == [3, 3, 3]


def test_beside_other_tenants_a_request_s_own_depth_is_the_policy_s_at_most() -> None:
    """They would wait for all of its steps; a tenant alone has what it asks for."""
    wishes = ("fixed:32", "fixed:2", "auto", "off")
    rows = [ActiveRequest(request(key, [1], 90, speculation=wish)) for key, wish in enumerate(wishes)]
    for shared, deepest in ((False, 32), (True, 6)):
        batch = Batch(rows, np.ones(4, np.int32), (), (), 4, shared=shared)
        names, roster = ["draft"] * 4, Roster(["draft"], ManualClock())
        assert lay_out(batch, names, roster, 512, 3, 1, 6).depth.tolist() == [deepest, 2, 3, 0]
        assert draft_tokens(batch, names, roster, 512, 6, 1) == tuple(deepest + 2 + depth for depth in range(7))


def test_the_tokens_of_a_pass_are_those_that_rows_are_asked_for() -> None:
    """Also where a row nears its own end, or the last position of its drafter."""
    roster = Roster(["draft"], ManualClock())
    roster.came("draft", DrafterInfo("draft", 1000, 512, 1, 0))
    lengths, room = (509, 20, 100), (90, 90, 4)
    rows = [ActiveRequest(request(key, [1] * length, left)) for key, (length, left) in enumerate(zip(lengths, room))]
    batch, names = Batch(rows, np.ones(3, np.int32), (), (), 3), ["draft"] * 3
    asked = [int(lay_out(batch, names, roster, 512, depth, 1).depth.sum()) for depth in range(7)]
    assert asked == [0, 3, 6, 9, 10, 11, 12]
    assert draft_tokens(batch, names, roster, 512, 6, 1) == tuple(asked)


def test_a_policy_expects_drafts_only_of_rows_that_get_them() -> None:
    """The head's process is gone: the target drafts with it, but not under the rejection rule."""
    roster = Roster(["head"], ManualClock(), "head")
    rows = [ActiveRequest(request(key, [1, 2, 3], 30, sampling=Sampling(rule=rule))) for key, rule in enumerate(Rule)]
    batch = Batch(rows, np.ones(len(rows), np.int32), (), (), len(rows))
    assigned = Assignment(("head",) * len(rows), ("first",) * len(rows))
    both = situation_of(batch, assigned, roster, 64, 0, max_depth=3, width=1)
    assert (both.shares, both.served) == ((("head", 2),), True)
    roster.gone("head")
    alone = situation_of(batch, assigned, roster, 64, 0, max_depth=3, width=1)
    assert (alone.rows, alone.shares, alone.served) == (2, (("head", 1),), True)
    assert alone.drafts == (0, 1, 2, 3)
    assert lay_out(batch, assigned.drafters, roster, 64, 3, 1).depth.tolist() == [
        3 if active.coupled else 0 for active in rows
    ]
    roster.own_head_failed()
    assert not situation_of(batch, assigned, roster, 64, 0, max_depth=3, width=1).served
