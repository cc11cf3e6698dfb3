"""Requests may ask for deeper drafts than a planner ever chooses: 32 where its `max_depth` is less. Nothing that counts
by depth may fail of them, whoever chooses lengths, drafters and drafts, and no text depends on it."""

from __future__ import annotations

import pytest

from covey.contracts import registry
from covey.contracts.profile import SpeculationSettings
from covey.planner.build import build
from covey.planner.policies import FIXED
from covey.planner.round_planner import RoundPlanner
from covey_client.costs.table import CostTable
from covey_client.wire import MAX_DRAFT_TOKENS
from tests.fakes import continuation, request
from tests.grids import Row, pairwise, whole
from tests.planner.test_round_planner import Serving

NAMES, LENGTH = ("first", "second"), 48
COSTS = CostTable(
    "made up",
    "for tests",
    tuple((rows, tokens, 0.01 + 0.0001 * tokens) for rows in (1, 8) for tokens in (rows, 256)),
    (),
    dict.fromkeys(NAMES, ((1, 1, 0.001), (8, 4, 0.002))),
)
POLICIES = [name for name in registry.POLICIES if name != FIXED] + ["fixed:3"]
TABLE = ("1:4", "4:1")


def _settings(policy: str, selection: str, drafter_policy: str, width: int) -> SpeculationSettings:
    return SpeculationSettings(
        policy=policy,
        max_depth=4,
        width=width,
        selection=selection,
        drafter_policy=drafter_policy,
        drafters=NAMES,
        table=TABLE,
    )


def _served(settings: SpeculationSettings, costs: CostTable | None, right: int) -> Serving:
    """Several requests of each depth, among them some that come later, as is usual."""
    serving = Serving(build(settings, NAMES, max_rows=8, costs=costs), right=right, budget=512, names=NAMES)
    kinds = ("auto", "fixed:8", f"fixed:{MAX_DRAFT_TOKENS}", "off", "auto", "fixed:1", "auto")
    for key in range(3 * len(kinds)):
        named = NAMES[key % 2] if key % 3 == 0 else ""
        serving.engine.submit(request(key, [key, 5, 9, 2], LENGTH, speculation=kinds[key % len(kinds)], drafter=named))
        if key % 4 == 3:
            serving.run(3)
    serving.run()
    for key in range(3 * len(kinds)):
        assert serving.sink.tokens[key] == continuation([key, 5, 9, 2], LENGTH), key
    assert max(int(work.trees.sizes.max(initial=0)) for work in serving.target.works) > 4
    return serving


GRID = {
    "policy": POLICIES,
    "selection": ["all", "worth"],
    "drafter_policy": ["fixed:first", "random"],
    "known": ["nothing", "costs"],
    "right": [1, 40],
}
SAMPLE = pairwise(GRID)


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, marks=() if row in SAMPLE else pytest.mark.slow) for row in whole(GRID)],
    ids=lambda row: "-".join(map(str, row.values())),
)
def test_every_length_policy_goes_on(row: Row) -> None:
    settings = _settings(row["policy"], row["selection"], row["drafter_policy"], width=2)
    serving = _served(settings, COSTS if row["known"] == "costs" else None, row["right"])
    planner = serving.planner
    assert isinstance(planner, RoundPlanner)
    assert list(planner.figures())
    depths = {entry.depth for entry in planner.decisions.latest()}
    assert depths == {0} if row["policy"] == "off" else max(depths) > 0


@pytest.mark.parametrize("name", registry.DRAFTER_POLICIES)
def test_every_drafter_policy_goes_on(name: str) -> None:
    _served(_settings("adaptive", "worth", f"{name}:first" if name == "fixed" else name, width=1), COSTS, right=9)
