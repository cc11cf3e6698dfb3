"""Sliding-window UCB (Garivier and Moulines 2011; MetaSD's Algorithm 8): only the last `window` rounds count.

Corrected: Algorithm 8 divides by zero once an arm has left the window. Here such an arm is played next, as if it was
never played. Algorithm 8 also sums the played arm's rewards for every arm (its r with index a_t) and takes means before
it counts. It has ln t, but Garivier and Moulines have the logarithm of the rounds in the window, as here. So every arm
is played about once per window, which must not be shorter than the number of arms. The papers give no length; ours is
32 rounds.
"""

from __future__ import annotations

from collections import deque
from typing import ClassVar

from covey.bandits.drafters.choice import Reward, at_least
from covey.bandits.drafters.ucb import UCB


class SlidingWindowUCB(UCB):
    """Implements `Bandit`."""

    reward: ClassVar[Reward] = "divergence"

    def __init__(self, arms: int, *, beta: float = 0.1, window: int = 32) -> None:
        super().__init__(arms, beta)
        self._window = deque[tuple[int, float]](maxlen=int(at_least("window", window, arms)))

    def _record(self, arm: int, reward: float) -> None:
        self._window.append((arm, reward))
        for each in range(len(self._counts)):
            rewards = [reward for played, reward in self._window if played == each]
            self._counts[each], self._sums[each] = float(len(rewards)), sum(rewards)
