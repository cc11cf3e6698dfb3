"""Nightjar: a bandit over draft depths for each batch size, which locks its arm for a bin and prices switching.

Both versions of the paper share Algorithm 1:

             exploration at bin b    latency of an arm
    v2       1/b                     mean of 1/g             (equation 4 and the update below it)
    v1       1/sqrt(b)               1 / mean of g           (equation 3)

Both exploit the argmin over gamma of latency + [gamma_prev = 0 and gamma > 0] C_switch(L_max, B) / gamma.

The papers look C_switch up in a table that was measured beforehand with equal lags. Its keys are L_max, the longest lag
of any request, and the batch size. So does this file, by linear interpolation, and never refines it.

This file decides what the papers leave open:
- An arm never played at this batch size counts as infinitely slow (v1's goodput 0). Only exploration tries it. If no
  arm was played, the draw is uniform. The first bin of every block explores, since b is 1.
- The latency of a round that switches drafting on excludes its catch-up time, which C_switch prices already.
- While no drafter is available, the only arm is 0, and nothing is recorded.
- If the allowed depth is limited, the arms are the allowed ones. A locked arm above the limit is drawn again.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from covey.bandits.bins import Bins
from covey.bandits.policy import UNKNOWN, Forgetful, Outcome, Reason, Situation

SwitchCost = Callable[[int, int], float]  # (lag, batch) -> seconds


class Arms:
    """Means over the rounds of one batch size, and its bins."""

    __slots__ = ("bins", "goodput", "latency", "pulls")

    def __init__(self, depths: int) -> None:
        self.bins = Bins()
        self.pulls = [0] * depths
        self.latency = [UNKNOWN] * depths  # mean of 1/g
        self.goodput = [0.0] * depths  # mean of g

    def record(self, depth: int, latency: float) -> None:
        """Update the incremental means below equations 3 and 4."""
        self.pulls[depth] += 1
        count = self.pulls[depth]
        if count == 1:
            self.latency[depth] = latency
        else:
            self.latency[depth] += (latency - self.latency[depth]) / count
        self.goodput[depth] += (1.0 / latency - self.goodput[depth]) / count


class Nightjar(Forgetful):
    """Implements `LengthPolicy`: version 2, the reference."""

    def __init__(self, max_depth: int, rng: np.random.Generator, switch_cost: SwitchCost) -> None:
        self._depths = max_depth + 1
        self._rng = rng
        self._switch_cost = switch_cost
        self._batches: dict[int, Arms] = {}
        self.reason = Reason("")

    def choose(self, situation: Situation) -> int:
        if situation.ceiling == 0:
            self.reason = Reason(situation.why_plain)
            return 0
        arms = self.arms(situation.rows)
        bins = arms.bins
        if bins.arm is None or bins.arm > situation.ceiling:
            if self._rng.random() < self.exploration(bins.bin):
                bins.arm = int(self._rng.integers(situation.ceiling + 1))
                self.reason = Reason("explore", self.latencies(arms))
            else:
                bins.arm = self._best(arms, situation)
        else:
            self.reason = Reason("locked", self.latencies(arms))
        return bins.arm

    def update(self, situation: Situation, depth: int, outcome: Outcome) -> None:
        if situation.ceiling == 0:
            return
        arms = self.arms(situation.rows)
        seconds = outcome.seconds
        if situation.previous == 0:
            seconds -= outcome.catch_up_seconds
        arms.record(depth, max(seconds, 1e-9) / max(1, outcome.tokens))
        arms.bins.advance()

    def exploration(self, index: int) -> float:
        """Return the probability that bin `index` of a block explores."""
        return 1.0 / index

    def latencies(self, arms: Arms) -> list[float]:
        """Return the seconds per token of each depth. Does not mutate."""
        return arms.latency

    def arms(self, rows: int) -> Arms:
        """Return the state of one batch size; create it on first use."""
        state = self._batches.get(rows)
        if state is None:
            state = self._batches[rows] = Arms(self._depths)
        return state

    def _best(self, arms: Arms, situation: Situation) -> int:
        """Return the depth of least loss by equation 4 (3 in v1), or a random one if no loss is known. Set `reason`."""
        losses = list(self.latencies(arms))
        if situation.previous == 0:
            cost = self._switch_cost(situation.lag, situation.rows)
            for depth in range(1, self._depths):
                losses[depth] += cost / depth
        best = min(range(situation.ceiling + 1), key=losses.__getitem__)
        if losses[best] == UNKNOWN:
            best = int(self._rng.integers(situation.ceiling + 1))
        self.reason = Reason("exploit", losses)
        return best


class NightjarV1(Nightjar):
    """Implements `LengthPolicy`: version 1."""

    def exploration(self, index: int) -> float:
        return float(index**-0.5)

    def latencies(self, arms: Arms) -> list[float]:
        return [1.0 / goodput if goodput else UNKNOWN for goodput in arms.goodput]
