"""What a round of some rows takes but for drafting, by the tokens in its pass: a line between knots."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from covey.planner.regression import Array

Index = npt.NDArray[np.int64]
FAR = 1e7  # tokens up to which the line beyond the last knot is drawn


@dataclass(frozen=True, slots=True)
class PassCurve:
    """Of so many rows. `drafts` are seconds that a pass takes beyond the line where there are drafts in it, `prompt`
    those of each token of a prompt."""

    rows: int
    knots: Array
    seconds: Array
    drafts: float
    prompt: float

    def at(self, tokens: Array | Index | int, prefill: Index | int = 0) -> Array:
        """Seconds of passes over so many tokens, and so many of prompts beside them."""
        seconds = np.interp(tokens + prefill, self.knots, self.seconds) + self.drafts * (tokens > self.rows)
        return seconds + self.prompt * prefill
