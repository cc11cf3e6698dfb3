"""Selects which drafts of a batch are verified: all of them, or the best by path probability (TETRIS).

Under the rejection rule, selection must not depend on drawn tokens, and so not on their probabilities. There a draft is
ranked by how often drafts at its position have been accepted so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from covey.bandits.policy import Outcome
from covey.contracts.types import Rule, Trees
from covey.planner.acceptance import Acceptance
from covey.planner.lessons import tried_by_position
from covey.requests.rounds import Drafted, Round
from covey.requests.scheduler import Batch
from covey.trees.paths import Nodes

Figures = Iterator[tuple[str, dict[str, str], float]]


class Selector(Protocol):
    """Chooses which of a round's drafts the target verifies."""

    log_q: bool  # whether it ranks them by the drafters' probabilities, without noise
    yields: bool  # whether it gives up drafts that no row needs if prompts fill the pass

    def select(self, batch: Batch, drafted: Drafted, budget: int) -> Trees:
        """Return the trees to verify: see `Planner.select`."""
        ...

    def learn(self, done: Round, outcome: Outcome) -> None:
        """Learn from a finished round."""
        ...

    def figures(self) -> Figures:
        """Yield metric, labels and value. Thread-safe."""
        ...


class VerifyAll:
    """Implements `Selector`: all drafts are verified."""

    log_q = False
    yields = False

    def select(self, batch: Batch, drafted: Drafted, budget: int) -> Trees:  # noqa: ARG002
        return drafted.trees

    def learn(self, done: Round, outcome: Outcome) -> None:
        """Learn nothing."""

    def figures(self) -> Figures:
        return iter(())


class BestOfBatch(VerifyAll):
    """Implements `Selector`: verifies the best drafts of a batch, `per_row` for each row on average."""

    def __init__(self, per_row: int, max_depth: int) -> None:
        self._per_row, self._max_depth = per_row, max_depth
        self._acceptance = Acceptance(max_depth)  # over all drafters

    def select(self, batch: Batch, drafted: Drafted, budget: int) -> Trees:  # noqa: ARG002
        return best(batch, drafted.trees, batch.decoding * self._per_row, self._acceptance.rates())

    def learn(self, done: Round, outcome: Outcome) -> None:  # noqa: ARG002
        tried, accepted = tried_by_position(done, self._max_depth)
        if any(tried):
            self._acceptance.update(tried, accepted)


def best(batch: Batch, trees: Trees, keep: int, rates: Sequence[float]) -> Trees:
    """Return the `keep` best nodes of the rows that leave their depth to the policy, and all nodes of the others.
    `rates` are acceptance by position. A node's parent is never worse and comes first, so trees stay connected."""
    if len(trees.tokens) <= keep:
        return trees
    sizes = trees.sizes
    paths, depth = np.log(np.maximum(1e-9, np.cumprod(rates))), Nodes.of(trees).depth
    scores = trees.scores.astype(np.float64) if len(trees.scores) else None
    ranked = np.zeros(len(trees.tokens), np.bool_)
    worth = np.empty(len(trees.tokens))
    for row in np.flatnonzero(sizes).tolist():
        span = slice(int(trees.offsets[row]), int(trees.offsets[row + 1]))
        request = batch.rows[row].request
        ranked[span] = request.speculation == "auto"
        if scores is None or request.sampling.rule is Rule.REJECTION:
            worth[span] = paths[np.minimum(depth[span], len(paths)) - 1]
        else:
            worth[span] = scores[span]
    kept = ~ranked
    candidates = np.flatnonzero(ranked)
    kept[candidates[np.argsort(-worth[candidates], kind="stable")[:keep]]] = True
    return trees.nodes(kept)
