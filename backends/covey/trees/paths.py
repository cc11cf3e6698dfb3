"""Computes the places of nodes in packed trees, and the probabilities of their paths, by NumPy over a whole batch.

All indices are in range, so `take` uses mode="clip", which skips NumPy's check.

    Trees of three rows     offsets 0 2 2 5, parents -1 0 | | -1 -1 1
    row_of                  0 0 2 2 2
    above                   -1 0 -1 -1 3       parents among all nodes
    depth                   1 2 1 1 2
    rank                    0 0 0 1 0          among its siblings, which are listed best first
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from covey.contracts.types import Floats, Ints, Trees

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Numbers = TypeVar("Numbers", Floats, Array)

LEAST, MOST = 1e-4, 1.0 - 1e-6  # bounds of a node's own probability: a path's must fall at each node even in float32


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes of a batch's trees, packed. `jumps[i]` are their ancestors 2^i above; the index after the last node
    stands for none. So a product along paths takes log2(depth) steps."""

    trees: Trees
    depth: Ints
    jumps: tuple[Index, ...]

    @classmethod
    def of(cls, trees: Trees) -> Nodes:
        sizes, count, roots = trees.sizes, len(trees.tokens), trees.parents < 0
        jump = np.empty(count + 1, np.int64)
        np.add(trees.parents, trees.offsets[:-1].repeat(sizes), out=jump[:-1])
        np.putmask(jump[:-1], roots, count)
        jump[count] = count
        depth = np.full(count + 1, 2, np.int32)
        depth[:-1] -= roots
        depth[count] = 0
        jumps, more = [jump], np.empty_like(depth)
        deepest = int(depth.max())
        while deepest >= 1 << len(jumps):  # some node may have more ancestors
            jump = jump.take(jump, mode="clip")
            depth += depth.take(jump, out=more, mode="clip")
            before, deepest = deepest, int(depth.max())
            if deepest == before:  # no node has
                break
            jumps.append(jump)
        return cls(trees, depth[:-1], tuple(jumps))

    @property
    def row_of(self) -> Index:
        return np.repeat(np.arange(self.trees.rows), self.trees.sizes)

    @property
    def above(self) -> Index:
        """Return each node's parent as an index among all nodes, -1 for the root."""
        jump = self.jumps[0]
        return np.where(jump < len(self.depth), jump, -1)[:-1]

    def ranks(self) -> Ints:
        """Return how many siblings are listed before each node."""
        trees = self.trees
        # Siblings share a key, their parent's index + 1. A root's children have the last node before their row instead.
        key = (trees.offsets[:-1] + 1).repeat(trees.sizes) + trees.parents
        order = key.argsort(kind="stable")
        ranks = np.empty(len(key), np.int32)
        ranks[order] = np.arange(len(key)) - key[order].searchsorted(key[order])
        return ranks

    def paths(self, own: Numbers) -> Numbers:
        """Return path probabilities; `own` are the nodes' probabilities given that their ancestors are accepted."""
        total = np.ones(len(own) + 1, own.dtype)
        np.minimum(np.maximum(own, LEAST), MOST, out=total[:-1])
        above = np.empty_like(total)
        for jump in self.jumps:
            total *= total.take(jump, out=above, mode="clip")
        return total[:-1]

    def own(self, scores: Floats) -> Floats:
        """Return each node's own probability from log path scores, clipped because drafters may give any number."""
        log = np.zeros(len(scores) + 1, np.float32)  # the last one is the root's
        log[:-1] = scores
        with np.errstate(over="ignore", invalid="ignore"):
            log -= log.take(self.jumps[0], mode="clip")
            said: Floats = np.exp(log[:-1], out=log[:-1])
        np.minimum(np.fmax(said, LEAST, out=said), MOST, out=said)  # `fmax` prefers a number to NaN
        return said

    def accepted(self, trees: Trees, offsets: Ints, tokens: Ints, accepted: Ints) -> Flags:
        """Return a mask of the accepted nodes. Row r got `tokens[offsets[r]:]`, whose first `accepted[r]` tokens are
        from its tree."""
        row_of = self.row_of
        wrong = np.append(self.depth > accepted[row_of], False)
        near = np.flatnonzero(~wrong[:-1])
        wrong[near] = tokens[offsets[row_of[near]] + self.depth[near] - 1] != trees.tokens[near]
        for jump in self.jumps:
            wrong |= wrong[jump]
        return ~wrong[:-1]
