"""Calibrates the drafters' probabilities, which are usually too high.

Estimates P(node accepted | ancestors accepted) by drafter, depth, rank among siblings, and the drafter's probability:

    p(depth, rank, bin) = (accepted + PRIOR * said) / (tried + PRIOR)      counted with forgetting

`said` is the drafter's probability of this node. It depends on the drawn token, and under the rejection rule nothing
may depend on that. There only a node's depth counts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from covey.contracts.types import Floats, Ints
from covey.trees.paths import Flags, Index, Nodes

LIFETIME = 20000.0  # after this many nodes, an old one counts 1/e
PRIOR = 4.0  # nodes that a drafter's own probability is worth
RANKS = 6  # the last one stands for all higher ranks
EDGES = np.array([0.01, 0.03, 0.07, 0.15, 0.3, 0.45, 0.6, 0.75, 0.87, 0.95, 0.99])
STEPS = 1000
BINS = np.searchsorted(EDGES, np.arange(STEPS + 1) / STEPS).astype(np.int32)  # the bin of each probability k / STEPS
BLIND = len(EDGES) + 1  # the bin of nodes whose probability is unknown or must not be used
UNSEEN = 0.5  # the probability of such nodes before any was seen


class Calibration:
    """Owns all counts and their estimates: P(accepted) = chance[cell] + trust[cell] * said."""

    def __init__(self, drafters: Sequence[str], max_depth: int) -> None:
        self._drafters = {name: index for index, name in enumerate(drafters)}
        self._max_depth = max_depth
        self._size = (max_depth + 1) * RANKS * (BLIND + 1)  # no node has depth 0
        self._tried, self._accepted = np.zeros((2, len(drafters) * self._size))
        self._weigh()

    def cells(self, nodes: Nodes, ranks: Ints, said: Floats, drafter: Index, blind: Flags) -> Index:
        """Return the index of the cell in which each node is counted; `drafter` and `blind` are by row."""
        bins = BINS.take((said * STEPS).astype(np.int64), mode="clip")
        places = np.minimum(ranks, RANKS - 1)
        if blind.any():
            hidden = blind[nodes.row_of]
            bins[hidden] = BLIND
            places[hidden] = 0
        found = np.minimum(nodes.depth, self._max_depth)
        found *= RANKS
        found += places
        found *= BLIND + 1
        found += bins
        cells = found.astype(np.int64)
        if drafter.any():
            cells += (drafter * self._size)[nodes.row_of]
        return cells

    def own(self, cells: Index, said: Floats) -> Floats:
        """Return each node's calibrated probability, given that its ancestors are accepted."""
        found = self._trust.take(cells)
        found *= said
        found += self._chance.take(cells)
        return found

    def index(self, drafters: Sequence[str]) -> Index:
        """Return the index of each row's drafter."""
        if len(self._drafters) == 1:
            return np.zeros(len(drafters), np.int64)
        return np.fromiter((self._drafters.get(name, 0) for name in drafters), np.int64, len(drafters))

    def update(self, cells: Index, accepted: Flags) -> None:
        """Count nodes whose parents were accepted, and which of these nodes were accepted."""
        keep = max(0.0, 1.0 - len(cells) / LIFETIME)
        for total, weights in ((self._tried, None), (self._accepted, accepted)):
            total *= keep
            total += np.bincount(cells, weights, len(total))
        self._weigh()

    def _weigh(self) -> None:
        """Compute each cell's trust and chance; blind cells have `UNSEEN` instead of a drafter's probability."""
        trust = PRIOR / (self._tried + PRIOR)
        chance = self._accepted / (self._tried + PRIOR)
        unsaid = np.arange(len(trust)) % (BLIND + 1) == BLIND
        self._chance = np.where(unsaid, chance + UNSEEN * trust, chance).astype(np.float32)
        self._trust = np.where(unsaid, 0.0, trust).astype(np.float32)
