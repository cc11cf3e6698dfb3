"""Policies that play one depth always (`off`, `fixed:k`), or one for each batch size (`table`). They learn nothing."""

from __future__ import annotations

import bisect
from collections.abc import Mapping

from covey.bandits.policy import Forgetful, Outcome, Reason, Situation


class Fixed(Forgetful):
    """Implements `LengthPolicy`."""

    patient = True

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.reason = Reason("fixed")

    def choose(self, situation: Situation) -> int:
        return min(self.depth, situation.ceiling)

    def update(self, situation: Situation, depth: int, outcome: Outcome) -> None:
        """Learn nothing."""


class Table(Forgetful):
    """Implements `LengthPolicy`: the depth listed for the largest batch size that the batch reaches."""

    patient = True

    def __init__(self, depths: Mapping[int, int]) -> None:
        if 1 not in depths:
            raise ValueError(f"a table of depths by batch size must start at batch 1, got {dict(depths)}")
        self._batches = sorted(depths)
        self._depths = [depths[batch] for batch in self._batches]
        self.reason = Reason("table")

    def choose(self, situation: Situation) -> int:
        index = bisect.bisect_right(self._batches, situation.rows) - 1
        return min(self._depths[max(0, index)], situation.ceiling)

    def update(self, situation: Situation, depth: int, outcome: Outcome) -> None:
        """Learn nothing."""
