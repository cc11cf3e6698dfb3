"""Estimates how often lookups are right, by the number of matched tokens.

A lookup offers a token if the end of its text occurred before. A match of one token is common and says little; one of
ten tokens says almost all. So at every token of the text, this counts whether the offer before it was right. A chain's
match grows by one token with each draft, so its rates rise. For example, a text's last 3 tokens have occurred before,
and offers by 3, 4 and 5 matched tokens were right at rates .5, .6 and .7. Then 1, 2 and 3 drafts will have .5,
.5 + .5 x .6 = .8 and .8 + .3 x .7 = 1.01 tokens accepted.
"""

from __future__ import annotations

PRIOR = 8.0  # offers that the rates of all texts are worth to one text
OWN, ALL = 32.0, 1000.0  # recent offers that count, of one text and of all
BOUNDS = (1, 2, 3, 4, 6, 10, 19)  # the longest match of each class but the last
_CLASSES = [next((place for place, most in enumerate(BOUNDS) if length <= most), len(BOUNDS)) for length in range(20)]


class HitRates:
    """The rates of one text, or of all texts of a drafter if `of` is None."""

    __slots__ = ("_all", "_hits", "_most", "_offers")

    def __init__(self, of: HitRates | None = None) -> None:
        self._all = of
        self._most = ALL if of is None else OWN
        self._offers = [0.0] * (len(BOUNDS) + 1)
        self._hits = [0.0] * (len(BOUNDS) + 1)

    def add(self, matched: int, right: bool) -> None:
        """Count an offer found by `matched` tokens."""
        place = _CLASSES[min(matched, len(_CLASSES) - 1)]
        keep = min(1.0, self._most / (self._offers[place] + 1.0))
        self._offers[place] = keep * (self._offers[place] + 1.0)
        self._hits[place] = keep * (self._hits[place] + right)
        if self._all is not None:
            self._all.add(matched, right)

    def of(self, matched: int) -> float:
        """Return the probability that an offer found by `matched` tokens is right. Does not mutate."""
        place = _CLASSES[min(matched, len(_CLASSES) - 1)]
        usual = 0.5 if self._all is None else self._all.of(matched)
        return (self._hits[place] + PRIOR * usual) / (self._offers[place] + PRIOR)
