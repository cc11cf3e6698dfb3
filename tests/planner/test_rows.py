"""The depth and width that each row of a batch gets, with any planner."""

from __future__ import annotations

import numpy as np

from covey.contracts.types import DrafterInfo, Rule, Sampling
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
