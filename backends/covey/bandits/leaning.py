"""Estimates how the acceptance of one request's drafts differs from the mean of all requests, as a shift of log odds.

    shift = sum of (accepted - a) / (sum of a (1 - a) + PRIOR)

Both sums are over the request's own trials. `a` is the acceptance rate of all requests at the trial's position. This is
one step of Newton's method towards the likeliest shift, if shifts are normal with variance 1 / PRIOR. For example, 10
drafts at a rate of .7 are all accepted: the shift is 3 / (2.1 + 5) = .42, and turns .7 into .78.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

PRIOR = 5.0  # some 20 trials


class Leaning:
    """Owns the sums of one request."""

    __slots__ = ("_known", "_more")

    def __init__(self) -> None:
        self._more = self._known = 0.0

    @property
    def shift(self) -> float:
        return self._more / (self._known + PRIOR)

    def add(self, rates: Sequence[float], tried: int, right: int) -> None:
        """Count a chain: the target looked at `tried` drafts and accepted `right` of them."""
        for rate in rates[:tried]:
            self._more -= rate
            self._known += rate * (1.0 - rate)
        self._more += right


def shifted(rates: Sequence[float], shift: float) -> list[float]:
    """Return these rates with their log odds shifted."""
    odds = math.exp(shift)
    return [rate * odds / (1.0 + rate * (odds - 1.0)) for rate in rates]
