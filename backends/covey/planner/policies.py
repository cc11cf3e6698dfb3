"""Makes the length policies that `covey.contracts.registry` lists."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from covey.bandits.policy import LengthPolicy
from covey.contracts import registry
from covey.contracts.errors import SettingError
from covey.contracts.profile import depths_by_batch
from covey.planner.switching import SwitchCosts
from covey_client.costs.table import CostTable

FIXED = "fixed:k"


@dataclass(frozen=True, slots=True)
class Setting:
    """The values that a policy's constructor may ask for by name."""

    name: str
    max_depth: int  # the deepest draft
    max_rows: int  # the largest batch
    rng: np.random.Generator
    switch_costs: SwitchCosts  # C_switch of each drafter, refined
    table: Iterable[str] = ()  # speculation.table
    costs: CostTable | None = None
    max_width: int = 1  # of a tree
    adaserve: Iterable[str] = ()  # speculation.adaserve

    @property
    def depth(self) -> int:
        """Return the k of `fixed:k`."""
        return fixed_depth(self.name) or 0

    @property
    def depths(self) -> Mapping[int, int]:
        """Return the depth that holds from each listed batch size on."""
        return depths_by_batch(self.table, self.max_depth)

    @property
    def switch_cost(self) -> Callable[[int, int], float]:
        """Return C_switch as published: from a table that is measured once and not refined."""
        return self.switch_costs.measured

    @property
    def batch_scale(self) -> float:
        return float(self.max_rows)


def make(setting: Setting) -> LengthPolicy:
    """Return a new policy. Raises SettingError, which names the allowed ones, if its name is unknown."""
    made: LengthPolicy = registry.make(_made_by(setting.name), setting)
    return made


def starts_from_costs(name: str) -> bool:
    """Return whether the policy starts from a cost table, if there is one."""
    return not {"switch_cost", "switch_costs"}.isdisjoint(registry.needs(_made_by(name)))


def fixed_depth(name: str) -> int | None:
    """Return the k of `fixed:k`; None for another policy's name."""
    match = re.fullmatch(r"fixed:(\d+)", name)
    return int(match[1]) if match else None


def _made_by(name: str) -> str:
    maker = registry.POLICIES.get(name if fixed_depth(name) is None else FIXED)
    if maker is None or name == FIXED:
        raise SettingError(f"speculation.policy: got {name!r}, allowed: {', '.join(registry.POLICIES)}")
    return maker
