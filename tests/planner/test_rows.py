"""What each row of a batch is asked for, whatever plans."""

from __future__ import annotations

import numpy as np

from covey.active import ActiveRequest
from covey.planner.rows import lay_out
from covey.roster import Roster
from covey.scheduler import Batch
from covey.types import Rule, Sampling
from tests.fakes import ManualClock, request


def test_rows_under_the_rejection_rule_get_chains() -> None:
    rules = (Rule.COUPLED, Rule.REJECTION, Rule.COUPLED)
    rows = [ActiveRequest(request(key, [1], 9, sampling=Sampling(rule=rule))) for key, rule in enumerate(rules)]
    choice = lay_out(
        Batch(rows, np.ones(3, np.int32), (), (), 3), ["draft"] * 3, Roster(["draft"], ManualClock()), 64, 3, 4
    )
    assert choice.width.tolist() == [4, 1, 4]
    assert choice.depth.tolist() == [3, 3, 3]
