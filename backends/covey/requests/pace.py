"""Estimates the pace of rounds from finished ones, to predict when requests end.

The sums decay: a round counts 1/e after `LIFETIME` others. A figure is 0 before the first round of its kind.
"""

from __future__ import annotations

import math

LIFETIME = 64  # rounds
LONG = 3.0  # a mean round that takes this many times the shortest one's time is long because of its tokens
WINDOW = 512  # rounds in each of the two windows over which shortest times are taken


class Pace:
    """Owns the sums. Only the engine's thread changes them."""

    def __init__(self) -> None:
        self._row_seconds = self._tokens = 0.0  # time spent by decoding rows, and tokens that they got
        self._seconds = self._overhead = self._weight = 0.0  # of all rounds: whole, outside the target, and count
        self._rows = self._drafts = 0.0  # decoding rows, and their verified drafts
        self._least = self._least_before = math.inf, math.inf  # per token of a row, and whole
        self._rounds = 0

    def update(self, seconds: float, rows: int, tokens: int, *, overhead: float = 0.0, drafts: int = 0) -> None:
        """Add a round: its seconds, its decoding rows, and their tokens and verified drafts. `overhead` is the part of
        the seconds outside the target."""
        keep = 1.0 - 1.0 / LIFETIME
        self._seconds, self._weight = self._seconds * keep + seconds, self._weight * keep + 1
        self._overhead = self._overhead * keep + overhead
        self._rows, self._drafts = self._rows * keep + rows, self._drafts * keep + drafts
        if rows and tokens:
            self._row_seconds = self._row_seconds * keep + rows * seconds
            self._tokens = self._tokens * keep + tokens
            self._least = min(self._least[0], rows * seconds / tokens), min(self._least[1], seconds)
            self._rounds += 1
            if self._rounds % WINDOW == 0:
                self._least_before, self._least = self._least, (math.inf, math.inf)

    @property
    def seconds(self) -> float:
        """Return the mean time of all recent rounds."""
        return self._seconds / self._weight if self._weight else 0.0

    @property
    def overhead(self) -> float:
        """Return the mean seconds of a round outside the target."""
        return self._overhead / self._weight if self._weight else 0.0

    @property
    def row_tokens(self) -> float:
        """Return the mean tokens of a decoding row in a round."""
        return self._tokens / self._rows if self._rows else 0.0

    @property
    def drafts(self) -> float:
        """Return the mean verified drafts of a decoding row in a round."""
        return self._drafts / self._rows if self._rows else 0.0

    @property
    def token_seconds(self) -> float:
        """Return the time per token of a decoding row, over all its rounds."""
        return self._row_seconds / self._tokens if self._tokens else 0.0

    @property
    def fastest(self) -> float:
        """Return the shortest time per token of a row in any recent round."""
        least = min(self._least[0], self._least_before[0])
        return least if least < math.inf else 0.0

    @property
    def long(self) -> bool:
        """Return whether recent rounds took long because of their tokens, as on a CPU. False before rows decoded."""
        shortest = min(self._least[1], self._least_before[1])
        return self.seconds >= LONG * shortest
