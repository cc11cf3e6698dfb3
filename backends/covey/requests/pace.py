"""Estimates how fast rounds go from those that are over, for predictions of a request's future.

The sums decay: a round counts 1/e after `MEMORY` others. A figure is 0 before the first round of its kind.
"""

from __future__ import annotations

import math

MEMORY = 64  # rounds
WINDOW = 512  # rounds in one of the two windows that the fastest is looked for in


class Pace:
    """Owns the sums. Changed by the engine's thread alone."""

    def __init__(self) -> None:
        self._row_seconds = self._tokens = 0.0  # time spent by rows that decode, and tokens that they got
        self._seconds = self._overhead = self._weight = 0.0  # of all rounds, and of them what no pass took
        self._rows = self._drafts = 0.0  # rows that decode, and drafts of them that were verified
        self._least = self._least_before = math.inf
        self._rounds = 0

    def update(self, seconds: float, rows: int, tokens: int, *, overhead: float = 0.0, drafts: int = 0) -> None:
        """Add a round of so many seconds, of which `overhead` were outside the target: `rows` decoded, had `drafts`
        verified and got `tokens`."""
        keep = 1.0 - 1.0 / MEMORY
        self._seconds, self._weight = self._seconds * keep + seconds, self._weight * keep + 1
        self._overhead = self._overhead * keep + overhead
        self._rows, self._drafts = self._rows * keep + rows, self._drafts * keep + drafts
        if rows and tokens:
            self._row_seconds = self._row_seconds * keep + rows * seconds
            self._tokens = self._tokens * keep + tokens
            self._least = min(self._least, rows * seconds / tokens)
            self._rounds += 1
            if self._rounds % WINDOW == 0:
                self._least_before, self._least = self._least, math.inf

    @property
    def seconds(self) -> float:
        """Return the mean time of recent rounds, whatever they did."""
        return self._seconds / self._weight if self._weight else 0.0

    @property
    def overhead(self) -> float:
        """Return the seconds of a round outside the target."""
        return self._overhead / self._weight if self._weight else 0.0

    @property
    def row_tokens(self) -> float:
        """Return the tokens that a row gets in a round."""
        return self._tokens / self._rows if self._rows else 0.0

    @property
    def drafts(self) -> float:
        """Return the drafts of a row that are verified in a round."""
        return self._drafts / self._rows if self._rows else 0.0

    @property
    def token_seconds(self) -> float:
        """Return the time per token of a row that decodes, whatever else its rounds did."""
        return self._row_seconds / self._tokens if self._tokens else 0.0

    @property
    def fastest(self) -> float:
        """Return the least time per token of a row in any recent round."""
        least = min(self._least, self._least_before)
        return least if least < math.inf else 0.0
