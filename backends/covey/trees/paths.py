"""The places of nodes in packed trees, and the probabilities of their paths. Numpy over all nodes of a batch.

Indices are taken with mode="clip", which saves numpy a pass over them: all of them are in range.

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

LEAST, MOST = 1e-4, 1.0 - 1e-6  # of a node's own probability: a path's falls at every node, in 32 bits, too


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes of a batch's trees, packed. `jumps[i]` are their ancestors 2^i above, the last index being no node's:
    what is to be multiplied along paths takes a step for each doubling of the depth."""

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
        while deepest >= 1 << len(jumps):  # somebody may have so many ancestors
            jump = jump.take(jump, mode="clip")
            depth += depth.take(jump, out=more, mode="clip")
            before, deepest = deepest, int(depth.max())
            if deepest == before:  # nobody has
                break
            jumps.append(jump)
        return cls(trees, depth[:-1], tuple(jumps))

    @property
    def row_of(self) -> Index:
        return np.repeat(np.arange(self.trees.rows), self.trees.sizes)

    @property
    def above(self) -> Index:
        """Return the parents among all nodes, -1 where the root is."""
        jump = self.jumps[0]
        return np.where(jump < len(self.depth), jump, -1)[:-1]

    def ranks(self) -> Ints:
        """Return how many siblings are listed before each node."""
        trees = self.trees
        # Siblings' parent, and one; a root's is the last node before its row, which has no children.
        key = (trees.offsets[:-1] + 1).repeat(trees.sizes) + trees.parents
        order = key.argsort(kind="stable")
        ranks = np.empty(len(key), np.int32)
        ranks[order] = np.arange(len(key)) - key[order].searchsorted(key[order])
        return ranks

    def paths(self, own: Numbers) -> Numbers:
        """Return the path probabilities of nodes that are as likely as `own` where all before them are right."""
        total = np.ones(len(own) + 1, own.dtype)
        np.minimum(np.maximum(own, LEAST), MOST, out=total[:-1])
        above = np.empty_like(total)
        for jump in self.jumps:
            total *= total.take(jump, out=above, mode="clip")
        return total[:-1]

    def own(self, scores: Floats) -> Floats:
        """Return each node's own part of log path scores, as a probability, whatever number a drafter gives."""
        log = np.zeros(len(scores) + 1, np.float32)  # a root's stands last
        log[:-1] = scores
        with np.errstate(over="ignore", invalid="ignore"):
            log -= log.take(self.jumps[0], mode="clip")
            said: Floats = np.exp(log[:-1], out=log[:-1])
        np.minimum(np.fmax(said, LEAST, out=said), MOST, out=said)  # `fmax` takes a number before none
        return said

    def accepted(self, trees: Trees, offsets: Ints, tokens: Ints, accepted: Ints) -> Flags:
        """Return a mask of the accepted nodes: row r was answered `tokens[offsets[r]:]`, whose first `accepted[r]` are
        of its tree."""
        row_of = self.row_of
        wrong = np.append(self.depth > accepted[row_of], False)
        near = np.flatnonzero(~wrong[:-1])
        wrong[near] = tokens[offsets[row_of[near]] + self.depth[near] - 1] != trees.tokens[near]
        for jump in self.jumps:
            wrong |= wrong[jump]
        return ~wrong[:-1]
