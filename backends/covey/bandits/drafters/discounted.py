"""Discounted UCB (Kocsis and Szepesvari 2006; MetaSD's Algorithm 6): a round's weight fades by gamma with every round.

Corrected: Algorithm 6 divides the discounted sum of rewards by the undiscounted count. So every mean sinks towards 0,
and its bonus never grows again. Here the count is discounted as well, in mean and bonus, and the logarithm is that of
the discounted rounds (Garivier and Moulines 2011). The papers give no gamma. 0.95 remembers about 20 rounds, which
suits requests of some tens. MetaSD's Table 19 has beta 0.1 for text that changes.
"""

from __future__ import annotations

from typing import ClassVar

from covey.bandits.drafters.choice import Reward, share
from covey.bandits.drafters.ucb import UCB


class DiscountedUCB(UCB):
    """Implements `Bandit`."""

    reward: ClassVar[Reward] = "divergence"

    def __init__(self, arms: int, *, beta: float = 0.1, gamma: float = 0.95) -> None:
        super().__init__(arms, beta)
        self._gamma = share("gamma", gamma)

    def _record(self, arm: int, reward: float) -> None:
        self._counts = [self._gamma * count for count in self._counts]
        self._sums = [self._gamma * each for each in self._sums]
        super()._record(arm, reward)
