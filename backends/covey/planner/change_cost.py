"""Measures what the first round at another depth costs beyond the rounds that follow it.

Caches, threads and products' shapes are made for what went on before, so such a round may take longer: that is the
price of a change, and says nothing about the depth. It is measured against the second round at the same depth, both
over their predictions: an error of the model, which both share, is no price.
"""

from __future__ import annotations

SETTLING = 4  # changes in a row from which on they are what rounds are like
SLIGHT = 0.05  # of a round: where changes from depth to depth take no more, there is nothing to be wary of,
ENOUGH = 4  # once so many were measured
MEMORY = 0.1  # weight of a new pair of rounds in the means
MOST = 1.0  # what one of them may count


class ChangeCost:
    """Owns two means: of changes from depth to depth, and of those that begin or end drafting."""

    def __init__(self) -> None:
        self._row = 0
        self._first: tuple[bool, float] | None = None  # whether the last round's change crossed, and its ratio
        self._excess = {False: 0.0, True: 0.0}
        self._measured = 0  # changes from depth to depth

    def seen(self, before: int, depth: int, ratio: float | None) -> bool:
        """Take a round that took `ratio` of its prediction, if known; return whether it was like those at its depth."""
        first, self._first = self._first, None
        crosses = (depth > 0) != (before > 0)
        if depth != before:
            self._row += 1
            self._first = (crosses, ratio) if ratio is not None else None
            return not self.dear(before, depth) or self._row > SETTLING
        self._row = 0
        if first is not None and ratio is not None:
            kind, more = first[0], min(MOST, first[1] / ratio - 1.0)
            self._excess[kind] += MEMORY * (more - self._excess[kind])
            self._measured += not kind
        return True

    def dear(self, before: int, depth: int) -> bool:
        """Return whether a round at `depth` after one at `before` is not like those that follow it."""
        if depth == before:
            return False
        return (depth > 0) != (before > 0) or self._measured < ENOUGH or self._excess[False] > SLIGHT

    def price(self, before: int, depth: int) -> float:
        """Return the cost of a change of depth, in rounds of the depth that it leads to. Does not mutate."""
        return 0.0 if depth == before else max(0.0, self._excess[(depth > 0) != (before > 0)])
