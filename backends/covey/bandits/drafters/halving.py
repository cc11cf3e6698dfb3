"""Sequential halving (Karnin et al. 2013; MetaSD's Algorithm 5) and explore-then-commit by it (PETC, Algorithm 4).

In each phase every survivor drafts for some consecutive rounds. Then the half with the better mean reward of that phase
survives. After the last phase the remaining arm drafts alone. Five arms have phases of 5, 3 and 2. `sh` plays an arm
for `period` rounds in a phase (published: 1). `petc` spends B0 = c ln B tokens in all; B is the most that the request
may emit. All phases, and the arms in each, get equal shares, at least one round. The paper leaves c open; with 8 a
request of 256 tokens explores for some 44 of them.

Corrected: Algorithm 5 keeps the arms whose reward is at most the median, the worse half; here the better half survives.
Its floor(log2 K) phases leave two of five arms; ceil(log2 K) phases leave one. Algorithm 4 counts tokens, Algorithm 5
rounds.

The turn of an arm that does not serve is postponed. If no arm that still has a turn serves, the best available arm
drafts, and the phase waits for the missing ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from covey.bandits.drafters.choice import Reward, at_least


class SequentialHalving:
    """Implements `Bandit`."""

    reward: ClassVar[Reward] = "divergence"

    def __init__(self, arms: int, *, period: int = 1) -> None:
        self._turn = at_least("period", period, 1)  # an arm's budget in this phase: here rounds
        self._phases = math.ceil(math.log2(arms))
        self._survivors = list(range(arms))
        self._counts, self._sums = [0] * arms, [0.0] * arms  # each arm's, over all rounds
        self._begin()

    def choose(self, allowed: Sequence[int]) -> int:
        due = next((arm for arm in self._due if arm in allowed), None)
        return max(allowed, key=self._standing) if due is None else due

    def update(self, arm: int, reward: float, tokens: int) -> None:
        self._counts[arm] += 1
        self._sums[arm] += reward
        if arm not in self._due:
            return
        self._rewards[arm].append(reward)
        self._spent[arm] += self._cost(tokens)
        if self._spent[arm] < self._turn:
            return
        self._due.remove(arm)
        if not self._due:
            means = {each: sum(rewards) / len(rewards) for each, rewards in self._rewards.items()}
            kept = math.ceil(len(means) / 2)
            # If the arm that has just drafted survives, it begins the next phase: one switch less.
            ranked = sorted(means, key=lambda each: -means[each])[:kept]
            self._survivors = sorted(ranked, key=lambda each: each != arm)
            self._begin()

    def _begin(self) -> None:
        """Start a phase, unless only one arm is left."""
        self._due = list(self._survivors) if len(self._survivors) > 1 else []
        self._rewards: dict[int, list[float]] = {arm: [] for arm in self._due}
        self._spent = dict.fromkeys(self._due, 0)

    def _cost(self, tokens: int) -> int:  # noqa: ARG002
        """Return how much of an arm's budget a round takes."""
        return 1

    def _standing(self, arm: int) -> tuple[bool, float]:
        """Return a sort key: survivors above others, then by mean reward."""
        return arm in self._survivors, self._sums[arm] / max(1, self._counts[arm])


class PETC(SequentialHalving):
    """Implements `Bandit`."""

    def __init__(self, arms: int, max_tokens: int, *, c: float = 8.0) -> None:
        self._budget = at_least("c", c, 0.0) * math.log(max(1, max_tokens))  # B0
        super().__init__(arms)

    def _begin(self) -> None:
        super()._begin()
        if self._due:
            self._turn = self._budget / (self._phases * len(self._due))

    def _cost(self, tokens: int) -> int:
        return tokens
