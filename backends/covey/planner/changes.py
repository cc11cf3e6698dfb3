"""Rounds at another depth than the round before. Caches, threads and products' shapes are made for what went on, so
such a round takes longer than those that follow it: that is the price of a change, and says nothing about the depth.
"""

from __future__ import annotations

SETTLING = 4  # changes in a row from which on they are what rounds are like
SLIGHT = 0.03  # of a round: where changes from depth to depth take no more, there is nothing to be wary of
MEMORY = 0.1  # weight of a new round in the means


class Changes:
    """Owns two means: of changes from depth to depth, and of those that begin or end drafting."""

    def __init__(self) -> None:
        self._row = 0
        self._excess = {False: 0.0, True: 0.0}

    def seen(self, before: int, depth: int) -> bool:
        """A round was played; whether it was like those that would follow it."""
        self._row = self._row + 1 if depth != before else 0
        return not self.dear(before, depth) or self._row > SETTLING

    def learn(self, before: int, depth: int, ratio: float) -> None:
        """What the round took, over what was predicted of one that goes on."""
        if depth != before:
            crosses = (depth > 0) != (before > 0)
            self._excess[crosses] += MEMORY * (min(1.0, ratio - 1.0) - self._excess[crosses])

    def dear(self, before: int, depth: int) -> bool:
        """Whether a round at `depth` after one at `before` is to be told apart from those that follow it."""
        if depth == before:
            return False
        return (depth > 0) != (before > 0) or self._excess[False] > SLIGHT

    def price(self, before: int, depth: int) -> float:
        """In rounds of that depth. Does not mutate."""
        return 0.0 if depth == before else max(0.0, self._excess[(depth > 0) != (before > 0)])
