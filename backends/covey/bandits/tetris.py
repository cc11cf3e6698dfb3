"""TETRIS: draft deeper than is verified, and verify the tokens most likely to be accepted over the whole batch.

Every row drafts `max_depth` tokens. The target verifies the best `rows * max(1, max_depth - SPARE)` of them by path
probability, ranked in `covey.planner.selection`. As published, it drafts at any load.
"""

from __future__ import annotations

from covey.bandits.policy import Forgetful, Outcome, Reason, Situation

SPARE = 2  # drafted tokens per row that are not verified, on average; the paper's runs draft 1 to 3 more


class Tetris(Forgetful):
    """Implements `LengthPolicy`."""

    def __init__(self, max_depth: int) -> None:
        self._depth = max_depth
        self.verified = max(1, max_depth - SPARE)
        self.reason = Reason("ranked")

    def choose(self, situation: Situation) -> int:
        return min(self._depth, situation.ceiling)

    def update(self, situation: Situation, depth: int, outcome: Outcome) -> None:
        """Learn nothing."""
