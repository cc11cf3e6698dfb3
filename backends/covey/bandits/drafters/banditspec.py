"""BanditSpec's two policies (Hou et al. 2025, arXiv 2505.15141), whose reward is the accepted length.

Both were written for a fixed draft length L and the emitted tokens Y in [1, L + 1]; (Y - 1) / L is block efficiency,
which says the same where depths vary. Their measure is the stopping-time regret: rounds until the request ends, less
those of the best arm (MetaSD's Definition 1 is the same).

`ucbspec` (Algorithm 4) has a confidence radius that holds without independence between rounds, divided by L here:

    1/2 sqrt((1 + n) / n^2 (1 + 2 ln(K t^2 sqrt(1 + n) / delta)))

It is wider than any gap between drafters for hundreds of rounds, which is the price of assuming so little; the paper
leaves delta open, 0.1 is ours. `exp3spec` (Algorithm 5) is EXP3 on losses 1 - reward with a rate that falls,
sqrt(ln K / (t K)), so that nothing need be known of the request's length; it has no forced exploration.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from covey.bandits.drafters.choice import Reward, share
from covey.bandits.drafters.exp3 import Drawn
from covey.bandits.drafters.ucb import UCB


class UCBSpec(UCB):
    """Implements `Bandit`."""

    reward: ClassVar[Reward] = "efficiency"

    def __init__(self, arms: int, *, delta: float = 0.1, switch_cost: float = 0.0) -> None:
        super().__init__(arms, 0.0, switch_cost)
        self._delta = share("delta", delta)

    def _bonus(self, count: float, rounds: float) -> float:
        inside = len(self._counts) * rounds * rounds * math.sqrt(1.0 + count) / self._delta
        return 0.5 * math.sqrt((1.0 + count) / (count * count) * (1.0 + 2.0 * math.log(inside)))


class EXP3Spec(Drawn):
    """Implements `Bandit`."""

    reward: ClassVar[Reward] = "efficiency"

    def __init__(self, arms: int, rng: np.random.Generator) -> None:
        super().__init__(arms, rng)
        self._rounds = 0

    def update(self, arm: int, reward: float, tokens: int) -> None:  # noqa: ARG002
        self._rounds += 1
        self._totals[arm] -= (1.0 - reward) / self._drawn_with(arm)

    @property
    def _rate(self) -> float:
        return math.sqrt(math.log(len(self._totals)) / ((self._rounds + 1) * len(self._totals)))
