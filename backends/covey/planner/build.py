"""From a profile's policy to the planner that carries it out."""

from __future__ import annotations

from collections.abc import Sequence

from covey.planner.choice import Planner
from covey.planner.static import StaticPlanner
from covey.profile import SpeculationSettings


def build(settings: SpeculationSettings, drafters: Sequence[str]) -> Planner:
    """`drafters` are those that can be used; without any, every policy decodes plainly."""
    depth = 0 if settings.policy == "off" else int(settings.policy.removeprefix("fixed:"))
    return StaticPlanner(depth, settings.width, drafters)
