"""NormalHedge (Chaudhuri, Freund and Hsu 2009) over all drafters: the learner of HedgeSpec (arXiv 2510.20064).

It is told what every arm would have got, so it need not explore, and it has no rate to tune. With R the sum of an arm's
reward less that of the draw, and [x]+ = max(0, x),

    p(arm) ~ [R]+ / c exp([R]+^2 / 2c),     c such that the mean of exp([R]+^2 / 2c) over the arms is e

and every arm is as likely while none is ahead. Rewards that are not known change nothing: the draw is compared among
the arms that are (sleeping experts). R counts a request's whole past, so after a change about as many rounds are needed
as came before it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from covey.bandits.drafters.choice import Reward

Array = npt.NDArray[np.float64]
STEPS = 26  # bisections: c to seven digits


class NormalHedge:
    """Implements `Bandit`."""

    reward: ClassVar[Reward] = "hits"

    def __init__(self, arms: int, rng: np.random.Generator) -> None:
        self._rng = rng
        self._regrets = np.zeros(arms)
        self._ahead = np.zeros(arms)  # [R]+
        self._scale = 1.0  # c, while an arm is ahead

    def probabilities(self, allowed: Sequence[int]) -> Array:
        """Return the probability of each allowed arm, in their order."""
        chosen = self._ahead[list(allowed)]
        most = chosen.max()
        if most == 0.0:
            return np.full(len(allowed), 1.0 / len(allowed))
        weights = chosen * np.exp((chosen**2 - most**2) / (2.0 * self._scale))
        drawn: Array = weights / weights.sum()
        return drawn

    def choose(self, allowed: Sequence[int]) -> int:
        return int(self._rng.choice(np.asarray(allowed), p=self.probabilities(allowed)))

    def update(self, arm: int, reward: float, tokens: int) -> None:
        """Learn nothing: the policy's own rounds are among those it witnesses."""

    def witness(self, rewards: Sequence[float | None]) -> None:
        known = [arm for arm, reward in enumerate(rewards) if reward is not None]
        if not known:
            return
        seen = np.array([rewards[arm] for arm in known], np.float64)
        gains = seen - self.probabilities(known) @ seen
        self._regrets[known] += gains
        self._ahead = np.maximum(0.0, self._regrets)
        if self._ahead.any():
            self._scale = _scale(self._ahead)


def _scale(ahead: Array) -> float:
    """Return c. The largest R alone reaches e at the lower end, and all arms together with that R at the upper one. In
    Python: arms are few, and numpy takes longer to be called than to add them."""
    squares: list[float] = (ahead**2 / 2.0).tolist()
    high, wanted = max(squares), math.e * len(squares)
    low = high / (1.0 + math.log(len(squares)))
    for _ in range(STEPS):
        middle = (low + high) / 2.0
        if sum(math.exp(square / middle) for square in squares) > wanted:
            low = middle
        else:
            high = middle
    return high
