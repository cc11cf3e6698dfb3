"""Where the nodes of packed trees stand, and how likely their paths are. Numpy over all nodes of a batch.

Trees of three rows     offsets 0 2 2 5, parents -1 0 | | -1 -1 1
row_of                  0 0 2 2 2
above                   -1 0 -1 -1 3       parents among all nodes
depth                   1 2 1 1 2
rank                    0 0 0 1 0          among its siblings, which are listed best first
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from covey.types import Floats, Ints, Trees

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

LEAST, MOST = 1e-4, 1.0 - 1e-6  # of a node's own probability: a path's falls at every node


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes of a batch's trees, packed. `jumps[i]` are their ancestors 2^i above, the last index being no node's:
    what is to be summed along paths takes a step for each doubling of the depth."""

    row_of: Index
    above: Index
    depth: Index
    jumps: tuple[Index, ...]

    @classmethod
    def of(cls, trees: Trees) -> Nodes:
        sizes, count = trees.sizes, len(trees.tokens)
        row_of = np.repeat(np.arange(len(sizes)), sizes)
        roots = trees.parents < 0
        jump, jumps = np.full(count + 1, count), []
        np.add(trees.parents, trees.offsets[row_of], out=jump[:-1])
        jump[:-1][roots] = count
        above = jump[:-1].copy()
        above[roots] = -1
        depth = np.ones(count + 1, np.int64)
        depth[count] = 0
        while (jump < count).any():
            jumps.append(jump)
            depth += depth[jump]
            jump = jump[jump]
        return cls(row_of, above, depth[:-1], tuple(jumps))

    def ranks(self) -> Index:
        """How many siblings are listed before each node."""
        count = len(self.above)
        if not count:
            return np.zeros(0, np.int64)
        family = np.where(self.above < 0, self.row_of, self.row_of[-1] + 1 + self.above)  # by parent, roots first
        order = np.argsort(family.astype(np.uint16 if int(family.max()) < 1 << 16 else np.int64), kind="stable")
        listed, places = family[order], np.arange(count)
        first = places.copy()  # where each place's family begins
        first[1:][listed[1:] == listed[:-1]] = 0
        ranks = np.empty(count, np.int64)
        ranks[order] = places - np.maximum.accumulate(first)
        return ranks

    def paths(self, own: Array) -> Array:
        """Path probabilities of nodes that are as likely as `own` where all before them are right."""
        total = np.zeros(len(own) + 1)
        np.log(np.clip(own, LEAST, MOST), out=total[:-1])
        for jump in self.jumps:
            total += total[jump]
        found: Array = np.exp(total[:-1])
        return found

    def own(self, scores: Floats) -> Array:
        """Each node's own part of log path scores, as a probability. Whatever a drafter says, it is one."""
        log = np.zeros(len(scores) + 1)  # a root's stands last, where node -1 finds it
        log[:-1] = scores
        with np.errstate(over="ignore", invalid="ignore"):
            found = np.exp(log[:-1] - log[self.above])
        said: Array = np.minimum(np.fmax(found, LEAST), MOST)  # `fmax` takes a number before none
        return said

    def accepted(self, trees: Trees, offsets: Ints, tokens: Ints, accepted: Ints) -> Flags:
        """Which nodes were: row r was answered `tokens[offsets[r]:]`, whose first `accepted[r]` are of its tree."""
        wrong = np.append(self.depth > accepted[self.row_of], False)
        near = np.flatnonzero(~wrong[:-1])
        wrong[near] = tokens[offsets[self.row_of[near]] + self.depth[near] - 1] != trees.tokens[near]
        for jump in self.jumps:
            wrong |= wrong[jump]
        return ~wrong[:-1]
