"""What a shared drafter takes for a level of a draft, t_s, by how many rows it drafts for, as measured of late."""

from __future__ import annotations

import math

FORGETS = 0.1  # weight of the newest
MARGIN = 1.25  # of what is predicted, where being late is worse than waiting


class Speed:
    """Owns the measurements; knows nothing before the first, and then predicts no time at all."""

    def __init__(self) -> None:
        self._steps: dict[int, float] = {}  # by the logarithm of the rows

    def update(self, rows: int, depth: int, seconds: float) -> None:
        """So long did a draft take, beside its catch-up."""
        if rows and depth:
            bucket, step = rows.bit_length(), seconds / depth
            self._steps[bucket] = step + (1 - FORGETS) * (self._steps.get(bucket, step) - step)

    def step(self, rows: int) -> float:
        """t_s; of the nearest number of rows that was met. Does not mutate."""
        if not self._steps:
            return 0.0
        bucket = rows.bit_length()
        return self._steps[min(self._steps, key=lambda met: (abs(met - bucket), -met))]

    def seconds(self, rows: int, depth: int) -> float:
        """What a draft takes, with a margin."""
        return MARGIN * depth * self.step(rows)

    def depth(self, rows: int, seconds: float) -> int:
        """How deep a draft can be that takes so long, with the margin; one token at least."""
        each = self.seconds(rows, 1)
        if not each or math.isinf(seconds):
            return 1 << 30
        return max(1, int(seconds / each))
