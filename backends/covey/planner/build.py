"""Builds the planner from a profile's settings."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from covey.bandits.drafters.policies import find
from covey.bandits.policy import LengthPolicy
from covey.contracts.profile import SpeculationSettings
from covey.planner import policies
from covey.planner.adaptive import Adaptive
from covey.planner.adaserve import AdaServe, AdaServeSelector
from covey.planner.drafters.bandits import PerRequest
from covey.planner.drafters.policy import DrafterPolicy, First
from covey.planner.expectations import Expectations
from covey.planner.round_planner import RoundPlanner
from covey.planner.selection import BestOfBatch, Selector, VerifyAll
from covey.planner.switching import SwitchCosts
from covey.planner.worth import WorthSelector
from covey_client.costs.table import CostTable

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
    """Return a new planner. `drafters` are the usable ones; without any, every policy decodes plainly. `max_rows` is
    the largest batch that the curves have knots for; larger ones are extrapolated."""
    max_depth = policies.fixed_depth(settings.policy) or settings.max_depth
    unknown = [name for name in drafters if costs is not None and name not in costs.draft]
    if costs is not None and unknown:
        log.warning("Cost table %s has no timings of %s; learning them from rounds", costs.name, ", ".join(unknown))
    first = next(iter(drafting(settings, drafters)), "")
    switch_costs = SwitchCosts(costs.switch if costs is not None else None, first)
    setting = policies.Setting(
        settings.policy,
        max_depth=max_depth,
        max_rows=max_rows,
        rng=np.random.default_rng(seed),
        switch_costs=switch_costs,
        table=settings.table,
        costs=costs,
        max_width=settings.width,
        adaserve=settings.adaserve,
    )
    policy = policies.make(setting)
    expectations = _expectations(settings, policy, setting)
    chooser: DrafterPolicy = First()
    if len(drafters) > 1:
        chooser = PerRequest(find(settings.drafter_policy), drafters, max_depth, seed=seed)
    return RoundPlanner(
        policy,
        max_depth=max_depth,
        width=settings.width,
        switch_costs=switch_costs,
        drafters=chooser,
        selector=_selector(settings.selection, drafters, policy, setting, expectations),
        expectations=expectations,
    )


def drafting(settings: SpeculationSettings, names: Sequence[str]) -> tuple[str, ...]:
    """Return the drafters for requests that name none. The others are their fallback."""
    name, _, own = settings.drafter_policy.partition(":")
    if name != "fixed":
        return tuple(names)
    return (own,) if own in names else tuple(names[:1])


def measured(settings: SpeculationSettings, names: Sequence[str]) -> tuple[str, ...]:
    """Return the drafters whose cost curves the planner starts from; none if no policy uses round times."""
    return drafting(settings, names) if policies.starts_from_costs(settings.policy) else ()


def _expectations(
    settings: SpeculationSettings, policy: LengthPolicy, setting: policies.Setting
) -> Expectations | None:
    """Return the expectations that all parts share: the policy's own, else new ones if a part needs them, else None."""
    if isinstance(policy, Adaptive):
        return policy.expectations
    if settings.selection == "worth":
        return Expectations(setting.max_depth, setting.max_rows, setting.costs)
    return None


def _selector(
    selection: str,
    drafters: Sequence[str],
    policy: LengthPolicy,
    setting: policies.Setting,
    expectations: Expectations | None,
) -> Selector:
    if isinstance(policy, AdaServe):
        return AdaServeSelector(policy, drafters, setting.max_depth)
    if policy.verified is not None:
        return BestOfBatch(policy.verified, setting.max_depth)
    if selection == "all" or not drafters or expectations is None:
        return VerifyAll()
    return WorthSelector(expectations, drafters, setting.max_depth)
