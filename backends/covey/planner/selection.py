"""Which drafts of the whole batch are worth verifying: all of them, or the best by path probability (TETRIS).

Under the rejection rule what is verified may not depend on drawn tokens, and a drafted token's probability does: there
a draft is ranked by how often drafts at its position have been accepted so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from covey.bandits.length import Outcome
from covey.planner.acceptance import Acceptance
from covey.rounds import Drafted
from covey.scheduler import Batch
from covey.types import Rule, Trees


class Selector(Protocol):
    """Chooses among drafts."""

    def select(self, batch: Batch, drafted: Drafted, budget: int) -> Trees:
        """Like `Planner.select`."""
        ...

    def learn(self, outcome: Outcome) -> None:
        """What came of a round."""
        ...


class Everything:
    """Implements `Selector`: what a planner asked for is worth verifying."""

    def select(self, batch: Batch, drafted: Drafted, budget: int) -> Trees:  # noqa: ARG002
        return drafted.trees

    def learn(self, outcome: Outcome) -> None:
        """Nothing to learn."""


class Best:
    """Implements `Selector`: so many drafts a row, on average."""

    def __init__(self, per_row: int, max_depth: int) -> None:
        self._per_row = per_row
        self._acceptance = Acceptance(max_depth)  # over all drafters

    def select(self, batch: Batch, drafted: Drafted, budget: int) -> Trees:  # noqa: ARG002
        return best(batch, drafted.trees, batch.decoding * self._per_row, self._acceptance.rates())

    def learn(self, outcome: Outcome) -> None:
        for counts in outcome.trials.values():
            self._acceptance.update(counts.offered, counts.accepted)


def best(batch: Batch, trees: Trees, keep: int, rates: Sequence[float]) -> Trees:
    """The `keep` best nodes of the rows that leave their depth to the policy, and all nodes of the others. `rates` are
    acceptance by position. A node's parent is never worse and comes first, so that what is kept hangs together."""
    if len(trees.tokens) <= keep:
        return trees
    sizes = trees.sizes
    paths = np.log(np.maximum(1e-9, np.cumprod(rates))).tolist()
    scores = trees.scores.astype(np.float64) if len(trees.scores) else None
    ranked = np.zeros(len(trees.tokens), np.bool_)
    worth = np.empty(len(trees.tokens))
    for row in np.flatnonzero(sizes).tolist():
        span = slice(int(trees.offsets[row]), int(trees.offsets[row + 1]))
        request = batch.rows[row].request
        ranked[span] = request.speculation == "auto"
        if scores is None or request.sampling.rule is Rule.REJECTION:
            worth[span] = [paths[min(depth, len(paths)) - 1] for depth in _depths(trees.parents[span].tolist())]
        else:
            worth[span] = scores[span]
    kept = ~ranked
    candidates = np.flatnonzero(ranked)
    kept[candidates[np.argsort(-worth[candidates], kind="stable")[:keep]]] = True
    return _only(trees, kept)


def _depths(parents: list[int]) -> list[int]:
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return depths


def _only(trees: Trees, kept: npt.NDArray[np.bool_]) -> Trees:
    """The kept nodes, their parents counted anew. Every kept node's parent must be kept."""
    before = np.concatenate([[0], np.cumsum(kept)])  # kept nodes before each node
    starts = np.repeat(trees.offsets[:-1], trees.sizes)
    parents = np.where(trees.parents < 0, -1, before[starts + np.maximum(0, trees.parents)] - before[starts])
    return Trees(
        before[trees.offsets].astype(np.int32),
        trees.tokens[kept],
        parents[kept].astype(np.int32),
        trees.scores[kept] if len(trees.scores) else trees.scores,
        None if trees.q_ids is None else trees.q_ids[kept],
        None if trees.q_probs is None else trees.q_probs[kept],
    )
