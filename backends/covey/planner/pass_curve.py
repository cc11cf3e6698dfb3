"""The time of a round without drafting, by the tokens in its pass, for one number of rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from covey.planner.regression import Array

Index = npt.NDArray[np.int64]
FAR = 1e7  # tokens up to which the last line extends


@dataclass(frozen=True, slots=True)
class PassCurve:
    """A piecewise linear curve for `rows` rows. A pass with drafts takes `drafts` seconds more, each prompt token
    `prompt` seconds more."""

    rows: int
    knots: Array
    seconds: Array
    drafts: float
    prompt: float

    @classmethod
    def unknown(cls, rows: int) -> PassCurve:
        """Return the curve before anything was measured: its unit of time is the token."""
        ends = np.array([0.0, FAR])
        return cls(rows, ends, ends, 0.0, 0.0)

    def at(self, tokens: Array | Index | int, prefill: Index | int = 0) -> Array:
        """Return the seconds of passes over `tokens` and, in addition, `prefill` prompt tokens."""
        seconds: Array = np.interp(tokens + prefill, self.knots, self.seconds)
        if self.drafts:
            seconds = seconds + self.drafts * (tokens > self.rows)
        return seconds + self.prompt * prefill
