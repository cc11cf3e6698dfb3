"""How often what is looked up is right, by how many last tokens it was found by.

A lookup offers a token wherever its text's end occurred before, and for a single token that is nearly always: what a
match of one token is followed by says little, what one of ten is followed by says nearly all. So it is counted, at
every token that is read, whether what would have been offered was right. A chain of drafts matches one token more with
every draft, so its rates rise. For example, a text's last 3 tokens have occurred before, and of its offers by 3, 4 and
5 tokens .5, .6 and .7 were right: 1, 2 and 3 drafts will have .5, .5 + .5 x .6 = .8 and .8 + .3 x .7 = 1.01 accepted.
"""

from __future__ import annotations

PRIOR = 8.0  # offers that all texts together are worth to one
OWN, ALL = 32.0, 1000.0  # offers that count, of one text and of all
BOUNDS = (1, 2, 3, 4, 6, 10, 19)  # the longest matches of all classes but the last
_CLASSES = [next((place for place, most in enumerate(BOUNDS) if length <= most), len(BOUNDS)) for length in range(20)]


class HitRates:
    """The rates of one text, or, where it is nobody's part, of all texts of a drafter."""

    __slots__ = ("_all", "_hits", "_most", "_offers")

    def __init__(self, of: HitRates | None = None) -> None:
        self._all = of
        self._most = ALL if of is None else OWN
        self._offers = [0.0] * (len(BOUNDS) + 1)
        self._hits = [0.0] * (len(BOUNDS) + 1)

    def add(self, matched: int, right: bool) -> None:
        """Count an offer by so many matched tokens."""
        place = _CLASSES[min(matched, len(_CLASSES) - 1)]
        keep = min(1.0, self._most / (self._offers[place] + 1.0))
        self._offers[place] = keep * (self._offers[place] + 1.0)
        self._hits[place] = keep * (self._hits[place] + right)
        if self._all is not None:
            self._all.add(matched, right)

    def of(self, matched: int) -> float:
        """Return how likely an offer by so many matched tokens is right. Does not mutate."""
        place = _CLASSES[min(matched, len(_CLASSES) - 1)]
        usual = 0.5 if self._all is None else self._all.of(matched)
        return (self._hits[place] + PRIOR * usual) / (self._offers[place] + PRIOR)
