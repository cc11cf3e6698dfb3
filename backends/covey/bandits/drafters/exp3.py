"""EXP3 (Auer et al. 2002; MetaSD's Algorithm 7): it draws arms, and divides a reward by its arm's probability.

gamma 0.4 is the published practice: two of five rounds draw an arm uniformly. Corrected: the weights of Algorithm 7
grow until floats overflow, so logarithms are kept here. Arms that do not serve are not drawn, and keep their weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from covey.bandits.drafters.choice import Reward, share

Array = npt.NDArray[np.float64]


class EXP3:
    """Implements `Bandit`."""

    reward: ClassVar[Reward] = "divergence"

    def __init__(self, arms: int, rng: np.random.Generator, *, gamma: float = 0.4) -> None:
        self._rng = rng
        self._gamma = share("gamma", gamma)
        self._totals = np.zeros(arms)  # sums of estimated rewards
        self._last: dict[int, float] = {}  # the probabilities of the last draw

    def probabilities(self, allowed: Sequence[int]) -> Array:
        """Return the probability of each allowed arm, in their order."""
        scores = self._gamma / len(self._totals) * self._totals[list(allowed)]
        weights = np.exp(scores - scores.max())
        mixed: Array = (1.0 - self._gamma) * weights / weights.sum() + self._gamma / len(allowed)
        return mixed

    def choose(self, allowed: Sequence[int]) -> int:
        probabilities = self.probabilities(allowed)
        self._last = dict(zip(allowed, probabilities.tolist()))
        return int(self._rng.choice(np.asarray(allowed), p=probabilities))

    def update(self, arm: int, reward: float, tokens: int) -> None:  # noqa: ARG002
        self._totals[arm] += reward / self._last.get(arm, 1.0)  # 1: another part chose the arm
