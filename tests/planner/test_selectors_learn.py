"""What selectors of single nodes learn of rounds: which nodes were right, how long rounds take, what is offered."""

from __future__ import annotations

import numpy as np
import pytest

from covey.contracts.profile import SpeculationSettings
from covey.planner.build import build
from covey.planner.candidates import TreeSelector
from covey.requests.rounds import RoundRecord
from tests.fakes import request
from tests.planner.test_round_planner import Serving


@pytest.mark.parametrize("policy", ["fixed:4", "adaptive", "adaserve"])
def test_nodes_whose_parents_were_right_are_counted(policy: str) -> None:
    """The drafter is right twice a round; the second request's prompt comes in between."""
    settings = SpeculationSettings(policy=policy, selection="worth", drafters=("only",), max_depth=4)
    planner, records = build(settings, ("only",), max_rows=8), list[RoundRecord]()
    serving = Serving(planner, names=("only",), observe=records.append)
    for key in (1, 2):
        serving.engine.submit(request(key, [key, 5, 6], 41))
        serving.run(3)
    serving.run()
    selector = planner.selector
    assert isinstance(selector, TreeSelector)
    figures = {(name, *labels.values()): value for name, labels, value in selector.figures()}
    accepted = sum(record.accepted for record in records)
    assert figures["covey_tree_nodes_total", "accepted"] == accepted > 0
    assert figures["covey_tree_nodes_total", "selected"] == sum(record.drafted for record in records)
    # In each row the nodes that were right, and the first that was not: where there was one.
    reached = sum(np.minimum(record.accepts + 1, record.sizes).sum() for record in records)
    counts = selector.calibration
    assert counts._accepted.sum() == pytest.approx(accepted, rel=0.02), "some are forgotten"
    assert counts._tried.sum() == pytest.approx(float(reached), rel=0.02)
