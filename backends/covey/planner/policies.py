"""Every policy over draft depths by its name in a profile."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from covey.bandits.banditspec import BanditSpec
from covey.bandits.bingreedy import AdaBinGreedy
from covey.bandits.dsd import DSD
from covey.bandits.fixed import Fixed, Table
from covey.bandits.length import LengthPolicy
from covey.bandits.linear import LinTS, LinUCB
from covey.bandits.nightjar import Nightjar, NightjarV1
from covey.bandits.tetris import Tetris
from covey.errors import SettingError
from covey.planner.cost_table import CostTable
from covey.planner.covey import Covey
from covey.planner.switching import SwitchCost
from covey.profile import depths_by_batch

NAMES = (
    "off",
    "fixed:k",
    "table",
    "ada-bingreedy",
    "banditspec",
    "dsd",
    "tetris",
    "linucb",
    "lints",
    "nightjar-v1",
    "nightjar",
    "covey",
)
FROM_COSTS = ("nightjar-v1", "nightjar", "covey")  # whose first predictions rest on a cost table where there is one


def make(
    name: str,
    *,
    max_depth: int,
    max_rows: int,
    rng: np.random.Generator,
    switch_cost: SwitchCost,
    table: Iterable[str] = (),
    costs: CostTable | None = None,
) -> LengthPolicy:
    """The policy called `name`; SettingError names the ones there are."""
    fixed = 0 if name == "off" else fixed_depth(name)
    if fixed is not None:
        return Fixed(fixed)
    if name == "table":
        return Table(depths_by_batch(table, max_depth))
    if name == "ada-bingreedy":
        return AdaBinGreedy(max_depth, rng)
    if name == "banditspec":
        return BanditSpec(max_depth)
    if name == "dsd":
        return DSD(max_depth)
    if name == "tetris":
        return Tetris(max_depth)
    if name == "linucb":
        return LinUCB(max_depth, batch_scale=float(max_rows))
    if name == "lints":
        return LinTS(max_depth, rng, batch_scale=float(max_rows))
    if name == "nightjar-v1":
        return NightjarV1(max_depth, rng, switch_cost)
    if name == "nightjar":
        return Nightjar(max_depth, rng, switch_cost)
    if name == "covey":
        return Covey(max_depth, max_rows, switch_cost, costs)
    raise SettingError(f"speculation.policy: got {name!r}, allowed: {', '.join(NAMES)}")


def fixed_depth(name: str) -> int | None:
    """The k of `fixed:k`; None when it is another policy's name."""
    found = re.fullmatch(r"fixed:(\d+)", name)
    return int(found[1]) if found else None
