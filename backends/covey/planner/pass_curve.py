"""The time of a round of a given number of rows without drafting, by the tokens in its pass: a line between knots."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from covey.planner.regression import Array

Index = npt.NDArray[np.int64]
FAR = 1e7  # tokens up to which the line beyond the last knot is drawn


@dataclass(frozen=True, slots=True)
class PassCurve:
    """The curve for `rows` rows. `drafts` are the seconds that a pass with drafts takes beyond the line, `prompt` those
    of each token of a prompt."""

    rows: int
    knots: Array
    seconds: Array
    drafts: float
    prompt: float

    @classmethod
    def unknown(cls, rows: int) -> PassCurve:
        """Return the curve before anything was measured: time is in tokens."""
        ends = np.array([0.0, FAR])
        return cls(rows, ends, ends, 0.0, 0.0)

    def least(self, tokens: int) -> list[tuple[float, float]]:
        """Return the least time of one more token in a pass over `tokens` tokens or more, at least 0: from each bend of
        the curve on, the farthest first, and from this number of tokens."""
        start = max(0, int(self.knots.searchsorted(tokens, side="right")) - 1)
        knots, seconds = self.knots[start:], self.seconds[start:]
        slopes = (seconds[1:] - seconds[:-1]) / (knots[1:] - knots[:-1])
        least = np.maximum(np.minimum.accumulate(slopes[::-1]), 0.0)
        if self.drafts < 0.0:
            least[-1] = 0.0
        return list(zip(np.maximum(knots[:-1], tokens)[::-1].tolist(), least.tolist()))

    def at(self, tokens: Array | Index | int, prefill: Index | int = 0) -> Array:
        """Return the seconds of passes over so many tokens, and so many of prompts besides."""
        seconds: Array = np.interp(tokens + prefill, self.knots, self.seconds)
        if self.drafts:
            seconds = seconds + self.drafts * (tokens > self.rows)
        return seconds + self.prompt * prefill
