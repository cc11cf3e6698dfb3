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

    def at(self, tokens: Array | Index | int, prefill: Index | int = 0) -> Array:
        """Return the seconds of passes over so many tokens, and so many of prompts besides."""
        seconds: Array = np.interp(tokens + prefill, self.knots, self.seconds)
        if self.drafts:
            seconds = seconds + self.drafts * (tokens > self.rows)
        return seconds + self.prompt * prefill
