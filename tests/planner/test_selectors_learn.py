"""What selectors of single nodes learn of rounds: which nodes were right, how long rounds take, what is offered."""

from __future__ import annotations

import numpy as np
import pytest

from covey.contracts.profile import SpeculationSettings
from covey.contracts.types import TargetReply, TargetWork
from covey.loop.configuration import EngineConfig, EngineHooks
from covey.loop.engine import Engine
from covey.planner.build import build
from covey.planner.candidates import TreeSelector
from covey.planner.round_planner import RoundPlanner
from covey.requests.rounds import RoundRecord
from covey.requests.scheduler import Scheduler
from tests.fakes import Collector, ManualClock, request
from tests.planner.test_round_planner import PrefixDrafter, SlowTarget

DEPTH, RIGHT = 4, 2


class _Reading(SlowTarget):
    """... and a millisecond for each token that is known."""

    def step(self, work: TargetWork) -> TargetReply:
        self.clock.sleep(0.001 * int(work.chunk.sum()))
        return super().step(work)


def served(policy: str, selection: str = "all", *, tokens: int = 41) -> tuple[RoundPlanner, list[RoundRecord]]:
    """One request whose drafter is right twice a round; the second one's prompt comes in between."""
    clock, records = ManualClock(), list[RoundRecord]()
    settings = SpeculationSettings(policy=policy, selection=selection, drafters=("only",), max_depth=DEPTH)
    planner = build(settings, ("only",), max_rows=8)
    scheduler = Scheduler(max_running=8, max_waiting=8, token_budget=64, growth_tokens=8, block_size=4)
    drafters = {"only": PrefixDrafter(clock, RIGHT)}
    engine = Engine(
        _Reading(clock),
        scheduler,
        planner,
        Collector(),
        clock,
        EngineConfig(drafters),
        EngineHooks(observe=records.append),
    )
    engine.submit(request(1, [1, 2, 3], tokens))
    for _ in range(3):
        engine.round()
    clock.sleep(0.5)
    engine.submit(request(2, [4, 5, 6], tokens))
    while engine.round():
        pass
    return planner, records


@pytest.mark.parametrize("policy", ["fixed:4", "adaptive", "adaserve"])
def test_nodes_whose_parents_were_right_are_counted(policy: str) -> None:
    planner, records = served(policy, "worth")
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
