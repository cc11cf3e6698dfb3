"""Covey's own selector: it verifies the drafted nodes that are worth their time.

Nodes are ranked by calibrated path probability. With n rows and the best m nodes a round is expected to bring

    tokens(m) = n + sum of the best m paths          seconds(m) = drafting + verify(n + m) + overhead

on the measured curves. The speed to be had is the largest tokens(m) / seconds(m) without prompts in the pass; m is
where tokens(m) - speed * seconds(m) is largest, in the pass as it is. So a node is verified if it brings more than the
time it takes would bring otherwise, and a pass that prompts make long is not filled for being long already.

Before that, rows whose objective can still be met are given what they need, 1 + the sum of their paths reaching A(r):
as many rows, the cheapest first, as are on time in a round that is longer by just these nodes and has room for them. A
row that is hopeless or ahead is given nothing beforehand, and its nodes count for less where they take time: what is
not theirs by need goes to others. Without objectives nothing of this happens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from covey.bandits.length import Outcome
from covey.contracts.types import Floats, Trees
from covey.planner.candidates import Candidates, TreeSelector
from covey.planner.expectations import Expectations
from covey.planner.standing import Standing
from covey.requests.rounds import Drafted, Round
from covey.requests.scheduler import Batch
from covey.trees.paths import Array, Flags, Index
from covey.trees.selection import ROUNDING

GIVEN = 0.7  # what a token counts for of a row that is ahead of its objective, or hopeless
SLIGHT = 0.01  # a path less likely is not looked at: it would bring next to nothing if it cost nothing
FAINT = 0.05  # a path less likely is no help in need


class WorthSelector(TreeSelector):
    """Implements `Selector`: what rows need for their objectives first, then whatever is worth its time."""

    yields = True

    def __init__(self, expectations: Expectations, drafters: Sequence[str], max_depth: int) -> None:
        super().__init__(drafters, max_depth)
        self._expectations = expectations
        expectations.selected = True

    def select(self, batch: Batch, drafted: Drafted, budget: int) -> Trees:
        trees = drafted.trees
        if not len(trees.tokens):
            return trees
        standing = Standing.of(batch)
        found = Candidates.of(standing, trees, trees.scores, drafted.drafter, self.calibration)
        paths = found.nodes.paths(found.own)
        kept = found.fixed()
        drafting = max((drafted.seconds[name] + drafted.catch_up[name] for name in drafted.seconds), default=0.0)
        curve = self._expectations.curve(batch.decoding)
        prefill = int(batch.chunk[batch.decoding :].sum())

        def seconds(nodes: Index | int, prompts: int = prefill) -> Array:
            """Return the time of rounds that verify so many nodes."""
            return drafting + curve.at(nodes + batch.decoding, prompts)

        needs = standing.needs(float(seconds(np.count_nonzero(kept))))
        weight, due = self._weights(standing, needs, trees.rows)
        room = budget - int(batch.chunk.sum())
        if due is not None:
            self._serve(standing, trees, paths, due, seconds, room, kept)
        value = paths if weight is None else paths * weight.repeat(trees.sizes)
        first, tokens = int(np.count_nonzero(kept)), float(batch.decoding)
        if first:
            tokens += float(paths[kept].sum())
            value = value.copy()
            value[kept] = 0.0
        near = (value >= SLIGHT).nonzero()[0]
        worth = value.take(near)
        order = (-worth).argsort(kind="stable")
        best = worth[order]
        counts = np.arange(first, first + len(best) + 1)
        now = seconds(counts)
        more = min(self._most(tokens, best, seconds(counts, 0) if prefill else now, now), room - first)
        if more > 0:
            kept[near[order[:more]]] = True
        return self.keep(found, kept, needs, room)

    def learn(self, done: Round, outcome: Outcome) -> None:  # noqa: ARG002
        self.count(done)

    def _most(self, tokens: float, best: Floats, plain: Array, now: Array) -> int:
        """Return how many of the best nodes to verify beside those that bring `tokens`, roots included."""
        brought = np.full(len(best) + 1, tokens)
        brought[1:] += best.cumsum(dtype=np.float64)
        speed = float((brought / plain).max())
        return int((brought - speed * now).argmax())

    def _weights(self, standing: Standing, needs: Array, rows: int) -> tuple[Floats | None, Array | None]:
        """Return the weight of a token of each row, None if all are equal, and A(r) of the rows that are late, can
        still meet their objective and leave their depth to the policy, None if there are none."""
        weight = due = None
        given = (needs <= 0.0) | standing.hopeless
        if given.any():
            weight = np.ones(rows, np.float32)
            weight[standing.timed[given]] = GIVEN
        late = (needs > 1.0) & ~given
        if late.any() and self._expectations.measured:
            due = np.zeros(rows)
            due[standing.timed[late]] = needs[late]
            due[standing.fixed] = 0.0
        return weight, due

    def _serve(
        self,
        standing: Standing,
        trees: Trees,
        paths: Floats,
        due: Array,
        seconds: Callable[[Index], Array],
        room: int,
        kept: Flags,
    ) -> None:
        """Keep the nodes that rows need to be on time, for as many rows as then are."""
        near = ((paths >= FAINT) & (due > 0.0).repeat(trees.sizes)).nonzero()[0]
        if not len(near):
            return
        rows = trees.offsets.searchsorted(near, side="right") - 1
        best = (rows - paths[near]).argsort()  # of each row; a node's path is less likely than its parent's
        near = near[best]
        brought = paths[near].astype(np.float64)
        of_row = np.bincount(rows, brought, trees.rows)
        before = brought.cumsum() - brought - (of_row.cumsum() - of_row)[rows]
        taken = (1.0 + before < due[rows] - ROUNDING).nonzero()[0]
        near, rows = near[taken], rows[taken]
        counts = np.bincount(rows, minlength=trees.rows)
        got = 1.0 + np.bincount(rows, brought[taken], trees.rows)
        late = counts.nonzero()[0]
        order = late[counts[late].argsort(kind="stable")]
        nodes = np.zeros(len(order) + 1, np.int64)
        nodes[1:] = counts[order].cumsum()
        nodes += np.count_nonzero(kept)
        # With k rows served the round takes longer, and all of them need more for that.
        times = seconds(nodes)
        longer = np.where(nodes[1:] > room, np.inf, times[1:] - times[0])
        tpot = standing.tpot[standing.timed.searchsorted(order)]
        margin = (got - due)[order] * tpot  # seconds by which it may last longer
        places = np.arange(len(order))
        met = ((margin >= longer[:, None]) & (places <= places[:, None])).sum(axis=1)
        if met.max() > 0:
            served = np.zeros(trees.rows, np.bool_)
            served[order[: int(met.argmax()) + 1]] = True
            kept[near[served[rows]]] = True
