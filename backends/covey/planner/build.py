"""From a profile's policy to the planner that carries it out."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from covey.planner import policies
from covey.planner.cost_table import CostTable
from covey.planner.round_planner import RoundPlanner
from covey.planner.selection import Best, Everything
from covey.planner.switching import SwitchCosts
from covey.profile import SpeculationSettings

log = logging.getLogger("covey.planner")

MAX_ROWS = 64


def build(
    settings: SpeculationSettings,
    drafters: Sequence[str],
    *,
    max_rows: int = MAX_ROWS,
    costs: CostTable | None = None,
    seed: int = 0,
) -> RoundPlanner:
    """`drafters` are those that can be used; without any, every policy decodes plainly. `max_rows` is the largest batch
    that the curves have knots for; larger ones are extrapolated."""
    max_depth = policies.fixed_depth(settings.policy) or settings.max_depth
    if costs is not None and drafters and drafters[0] not in costs.draft:
        log.warning("cost table %s knows nothing of %s: its costs are learnt from nothing", costs.name, drafters[0])
    switch_costs = SwitchCosts(costs.switch if costs is not None else None)
    policy = policies.make(
        settings.policy,
        max_depth=max_depth,
        max_rows=max_rows,
        rng=np.random.default_rng(seed),
        switch_costs=switch_costs,
        table=settings.table,
        costs=costs,
    )
    return RoundPlanner(
        policy,
        max_depth=max_depth,
        width=settings.width,
        switch_costs=switch_costs,
        selector=Everything() if policy.verified is None else Best(policy.verified, max_depth),
    )
