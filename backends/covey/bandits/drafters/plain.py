"""Policies that keep one drafter for the whole request (`fixed`), or draw uniformly (`random`). They learn nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from covey.bandits.drafters.choice import Unlearned
from covey.contracts.errors import SettingError


class Fixed(Unlearned):
    """Implements `Bandit`: the named drafter; without a name, or while it is away, the first that serves."""

    def __init__(self, names: Sequence[str], *, drafter: str = "") -> None:
        if drafter and drafter not in names:
            raise SettingError(f"drafter policy: got fixed:{drafter}, the drafters are {', '.join(names)}")
        self._arm = names.index(drafter) if drafter else None

    def choose(self, allowed: Sequence[int]) -> int:
        return allowed[0] if self._arm is None or self._arm not in allowed else self._arm


class Random(Unlearned):
    """Implements `Bandit`."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def choose(self, allowed: Sequence[int]) -> int:
        return allowed[int(self._rng.integers(len(allowed)))]
