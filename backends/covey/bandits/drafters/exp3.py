"""EXP3 (Auer et al. 2002; MetaSD's Algorithm 7): arms are drawn, and a reward counts divided by its arm's probability.

gamma 0.4 is the published practice: two of five rounds go to an arm drawn evenly, whatever was learnt. Corrected: the
weights of Algorithm 7 grow without bound, until they leave the range of floats; here their logarithms are kept. Arms
that do not serve are left out of the draw, and keep their weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from covey.bandits.drafters.choice import Reward, share

Array = npt.NDArray[np.float64]


class Drawn:
    """Arms drawn by exponential weights, mixed with an even draw."""

    def __init__(self, arms: int, rng: np.random.Generator, even: float = 0.0) -> None:
        self._rng = rng
        self._even = even  # share of rounds whose arm is drawn evenly
        self._totals = np.zeros(arms)  # sums of estimated rewards
        self._last: dict[int, float] = {}  # the probabilities of the last draw

    def probabilities(self, allowed: Sequence[int]) -> Array:
        """Return the probability of each allowed arm, in their order."""
        scores = self._rate * self._totals[list(allowed)]
        weights = np.exp(scores - scores.max())
        mixed: Array = (1.0 - self._even) * weights / weights.sum() + self._even / len(allowed)
        return mixed

    def choose(self, allowed: Sequence[int]) -> int:
        probabilities = self.probabilities(allowed)
        self._last = dict(zip(allowed, probabilities.tolist()))
        return int(self._rng.choice(np.asarray(allowed), p=probabilities))

    @property
    def _rate(self) -> float:
        raise NotImplementedError

    def _drawn_with(self, arm: int) -> float:
        """Return the probability that the arm was drawn with; 1 where it could not be, and somebody else chose it."""
        return self._last.get(arm, 1.0)


class EXP3(Drawn):
    """Implements `Bandit`."""

    reward: ClassVar[Reward] = "divergence"

    def __init__(self, arms: int, rng: np.random.Generator, *, gamma: float = 0.4) -> None:
        super().__init__(arms, rng, share("gamma", gamma))

    def update(self, arm: int, reward: float, tokens: int) -> None:  # noqa: ARG002
        self._totals[arm] += reward / self._drawn_with(arm)

    @property
    def _rate(self) -> float:
        return self._even / len(self._totals)
