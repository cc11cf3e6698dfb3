"""MetaSD-UCB (Algorithm 2): the arm of the highest mean reward + beta sqrt(2 ln t / n).

`ucb-bd` has the block divergence reward, `ucb-be` block efficiency. beta 0.01 is the published practice, but outside
the theory: Theorem 7 needs more than 0.5 in units of 1/sqrt(N_max). With so little exploration, a request that begins
with bad luck may keep the wrong arm. `ucb-bd-theorem` has beta = 1/sqrt(N_max), for which Theorem 2 bounds the
stopping-time regret by a logarithm. It assumes that the positions of a draft are independent (Assumption 1).

Corrected: Algorithm 2 plays every arm once per request, even if it does not serve. Here an arm is first played when it
serves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from covey.bandits.drafters.choice import Reward, at_least


class UCB:
    """Implements `Bandit`, except for the reward. Variants change the counting of rounds, or the bonus."""

    def __init__(self, arms: int, beta: float) -> None:
        self._beta = at_least("beta", beta, 0.0)
        self._counts = [0.0] * arms  # n
        self._sums = [0.0] * arms  # each arm's rewards so far

    def choose(self, allowed: Sequence[int]) -> int:
        untried = next((arm for arm in allowed if not self._counts[arm]), None)
        if untried is not None:
            return untried
        rounds = sum(self._counts)
        return max(allowed, key=lambda arm: self._index(arm, rounds))

    def update(self, arm: int, reward: float, tokens: int) -> None:  # noqa: ARG002
        self._record(arm, reward)

    def _index(self, arm: int, rounds: float) -> float:
        count = self._counts[arm]
        return self._sums[arm] / count + self._bonus(count, rounds)

    def _bonus(self, count: float, rounds: float) -> float:
        return self._beta * math.sqrt(2.0 * math.log(rounds) / count)

    def _record(self, arm: int, reward: float) -> None:
        self._counts[arm] += 1.0
        self._sums[arm] += reward


class BlockDivergence(UCB):
    reward: ClassVar[Reward] = "divergence"

    def __init__(self, arms: int, *, beta: float = 0.01) -> None:
        super().__init__(arms, beta)


class BlockEfficiency(UCB):
    reward: ClassVar[Reward] = "efficiency"

    def __init__(self, arms: int, *, beta: float = 0.01) -> None:
        super().__init__(arms, beta)


class Theorem(BlockDivergence):
    def __init__(self, arms: int, max_depth: int) -> None:
        super().__init__(arms, beta=max_depth**-0.5)
