"""How far the cost model was off for each arm: mean log(measured / predicted) by batch size and depth.

Kept at doublings of the batch size and interpolated between them, so that a batch that grows by one row meets no step.
An arm seldom measured is corrected little.
"""

from __future__ import annotations

import math

import numpy as np

from covey.planner.regression import Array
from covey.types import JsonDict

SHRINK = 20.0  # measurements at which half of the mean is believed
MEMORY = 100.0  # measurements that the mean covers
LIMIT = 0.7  # one measurement is taken for no more than a factor of two


class Residuals:
    """Owns nothing but means and counts."""

    def __init__(self, max_depth: int, max_rows: int) -> None:
        knots = max(2, math.ceil(math.log2(max(1, max_rows))) + 1)
        self._mean = np.zeros((knots, max_depth + 1))
        self._count = np.zeros((knots, max_depth + 1))
        self._believed = np.zeros((knots, max_depth + 1))  # means shrunk by their counts

    def factors(self, rows: int) -> Array:
        """Factors by which to multiply the predicted seconds of each depth. Does not mutate."""
        knot, weight = self._place(rows)
        factors: Array = np.exp((1.0 - weight) * self._believed[knot] + weight * self._believed[knot + 1])
        return factors

    def update(self, rows: int, depth: int, ratio: float) -> None:
        """Measured over predicted, the prediction without this correction."""
        error = min(LIMIT, max(-LIMIT, math.log(max(ratio, 1e-9))))
        knot, weight = self._place(rows)
        for index, share in ((knot, 1.0 - weight), (knot + 1, weight)):
            if share > 0.0:
                mean = float(self._mean[index, depth])
                count = min(MEMORY, float(self._count[index, depth]) + share)
                mean += min(1.0, share / count) * (error - mean)
                self._mean[index, depth], self._count[index, depth] = mean, count
                self._believed[index, depth] = mean * count / (count + SHRINK)

    def _place(self, rows: int) -> tuple[int, float]:
        position = min(math.log2(max(1, rows)), len(self._mean) - 1.0)
        knot = min(int(position), len(self._mean) - 2)
        return knot, position - knot

    def state(self) -> JsonDict:
        return {"mean": self._mean.tolist(), "count": self._count.tolist()}

    def restore(self, state: JsonDict) -> None:
        """ValueError when it is not such a state; then nothing changes."""
        mean, count = np.array(state["mean"], np.float64), np.array(state["count"], np.float64)
        if mean.shape != self._mean.shape or count.shape != mean.shape or not np.isfinite(mean + count).all():
            raise ValueError("residuals of another profile")
        self._mean, self._count = np.clip(mean, -LIMIT, LIMIT), np.clip(count, 0.0, MEMORY)
        self._believed = self._mean * self._count / (self._count + SHRINK)
