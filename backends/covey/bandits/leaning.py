"""How much more often, or less, a request's drafts are accepted than those of others: a shift of log odds.

    shift = sum of (accepted - a) / (sum of a (1 - a) + PRIOR)

The sums go over the request's own trials, each at a position where a share `a` of all requests' drafts is accepted.
This is the first step of Newton's method to the likeliest shift, if shifts are normal with variance 1 / PRIOR. A new
request has none.
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
        """Count a chain of which so many drafts were tried, and so many accepted."""
        for rate in rates[:tried]:
            self._more -= rate
            self._known += rate * (1.0 - rate)
        self._more += right


def shifted(rates: Sequence[float], shift: float) -> list[float]:
    """Return these rates with their log odds shifted."""
    odds = math.exp(shift)
    return [rate * odds / (1.0 + rate * (odds - 1.0)) for rate in rates]
