"""AdaServe's selection (its Algorithm 2), corrected.

Roots are in the budget and count as one expected token. A row's sum adds path probabilities, not the nodes' own ones.
No budget is overspent. Nodes are taken best first, and a node's path is strictly less likely than its parent's
(`covey.trees.paths`). So the selected nodes stay connected.

    Demands 1.6 and 1.3 of two rows, paths .5 .3 .2 and .9 .8, budget 4
    customised    row 0 has the larger demand: 1 + .5 < 1.6, so .5 and .3; row 1: .9           3 nodes
    throughput    .8 is the best of the others                                                 1 node
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from covey.trees.paths import Array, Flags, Index

ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Ranked:
    """Nodes by row, each row's in descending order of path probability."""

    paths: Array
    by_row: Index
    rows: Index  # in the order of by_row
    place: Index  # within its row, in the order of by_row
    before: Array  # in the order of by_row: expected tokens of its row from the root and the nodes before it

    @classmethod
    def of(cls, paths: Array, row_of: Index, count: int) -> Ranked:
        """Rank the paths of `count` rows."""
        falling = np.log(paths)
        key = row_of * (1.0 - float(falling.min(initial=0.0)))
        key -= falling
        by_row = np.argsort(key)
        sizes = np.bincount(row_of, minlength=count)
        starts = np.cumsum(sizes) - sizes
        total = np.ones(len(paths) + 1)
        total[1:] += np.cumsum(paths[by_row])
        first = np.repeat(starts, sizes)
        place = np.arange(len(paths)) - first
        before = 1.0 + total[:-1] - np.repeat(total[starts], sizes)
        return cls(paths, by_row, np.repeat(np.arange(count), sizes), place, before)

    def taken(self, counts: Index) -> Flags:
        """Return the mask of each row's best `counts[row]` nodes."""
        kept = np.zeros(len(self.paths), np.bool_)
        kept[self.by_row[self.place < counts[self.rows]]] = True
        return kept


def wanted(ranked: Ranked, demands: Array, most: int) -> Index:
    """Return how many nodes each row needs until its expected tokens reach its demand, at most `most`."""
    short = (ranked.before < demands[ranked.rows] - ROUNDING) & (ranked.place < most)
    counts: Index = np.bincount(ranked.rows[short], minlength=len(demands))
    return counts


def customised(ranked: Ranked, needs: Array, demands: Array, budget: int, most: int) -> Index:
    """Return how many nodes each row gets if rows are served by descending need, A(r), until the budget is spent. A
    row's demand is the part of its need that one round can bring."""
    counts = wanted(ranked, demands, most)
    order = np.argsort(-needs, kind="stable")
    asked = counts[order]
    counts[order] = np.clip(budget - (np.cumsum(asked) - asked), 0, asked)
    return counts


def filled(ranked: Ranked, kept: Flags, budget: int) -> Flags:
    """Return `kept` and the best of the others, `budget` nodes in all."""
    others = np.flatnonzero(~kept)
    left = others[np.argsort(-ranked.paths[others])][: max(0, budget - int(kept.sum()))]
    both = kept.copy()
    both[left] = True
    return both
