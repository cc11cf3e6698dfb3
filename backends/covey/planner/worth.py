"""Covey's own selector: it verifies the drafted nodes that are worth their time.

Nodes are ranked by calibrated path probability. With n rows and the best m nodes a round is expected to bring

    tokens(m) = n + sum of the best m paths          seconds(m) = drafting + verify(n + m) + overhead

on the measured curves. The reachable speed is the largest tokens(m) / seconds(m) of a pass without prompts. m maximises
tokens(m) - speed * seconds(m) in the actual pass. So a node is verified if its expected tokens exceed speed * its
extra seconds. It does not fill a pass merely because prompts make that long.

Before that, late rows that can still meet their objective get the nodes they need: 1 + the sum of their paths must
reach A(r). Cheap rows come first. Each served row makes the round longer, so the selector serves the number of rows
that leaves most of them on time. Rows that are ahead or hopeless get nothing beforehand, and their nodes count less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from covey.bandits.policy import Outcome
from covey.contracts.types import Floats, Trees
from covey.planner.candidates import Candidates, TreeSelector
from covey.planner.expectations import Expectations
from covey.planner.standing import Standing
from covey.requests.rounds import Drafted, Round
from covey.requests.scheduler import Batch
from covey.trees.paths import Array, Flags, Index
from covey.trees.selection import ROUNDING

GIVEN = 0.7  # weight of a token of a row that is ahead of its objective, or hopeless
SLIGHT = 0.01  # less likely paths are skipped: even at no cost they would bring next to nothing
FAINT = 0.05  # less likely paths do not help a late row


class WorthSelector(TreeSelector):
    """Implements `Selector`: first nodes that rows need for their objectives, then all that are worth their time."""

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
            """Return the time of rounds that verify `nodes` nodes."""
            return drafting + curve.at(nodes + batch.decoding, prompts)

        needs = standing.needs(float(seconds(np.count_nonzero(kept))))
        weight, needed = self._weights(standing, needs, trees.rows)
        room = budget - int(batch.chunk.sum())
        if needed is not None:
            self._serve(standing, trees, paths, needed, seconds, room, kept)
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
        """Return how many of the best nodes to verify, in addition to those that bring `tokens`, roots included."""
        brought = np.full(len(best) + 1, tokens)
        brought[1:] += best.cumsum(dtype=np.float64)
        speed = float((brought / plain).max())
        return int((brought - speed * now).argmax())

    def _weights(self, standing: Standing, needs: Array, rows: int) -> tuple[Floats | None, Array | None]:
        """Return the weight of each row's tokens, and A(r) of the rows to serve first, 0 for the others. Those rows are
        late, can still meet their objective, and do not fix their depth. None stands for equal weights, and for no
        such rows."""
        weight = needed = None
        given = (needs <= 0.0) | standing.hopeless
        if given.any():
            weight = np.ones(rows, np.float32)
            weight[standing.timed[given]] = GIVEN
        late = (needs > 1.0) & ~given
        if late.any() and self._expectations.measured:
            needed = np.zeros(rows)
            needed[standing.timed[late]] = needs[late]
            needed[standing.fixed] = 0.0
        return weight, needed

    def _serve(
        self,
        standing: Standing,
        trees: Trees,
        paths: Floats,
        needed: Array,
        seconds: Callable[[Index], Array],
        room: int,
        kept: Flags,
    ) -> None:
        """Keep the nodes that late rows need, for the number of rows at which most rows are on time."""
        near = ((paths >= FAINT) & (needed > 0.0).repeat(trees.sizes)).nonzero()[0]
        if not len(near):
            return
        rows = trees.offsets.searchsorted(near, side="right") - 1
        best = (rows - paths[near]).argsort()  # of each row; a node's path is less likely than its parent's
        near = near[best]
        brought = paths[near].astype(np.float64)
        of_row = np.bincount(rows, brought, trees.rows)
        before = brought.cumsum() - brought - (of_row.cumsum() - of_row)[rows]
        taken = (1.0 + before < needed[rows] - ROUNDING).nonzero()[0]
        near, rows = near[taken], rows[taken]
        counts = np.bincount(rows, minlength=trees.rows)
        got = 1.0 + np.bincount(rows, brought[taken], trees.rows)
        late = counts.nonzero()[0]
        order = late[counts[late].argsort(kind="stable")]
        nodes = np.zeros(len(order) + 1, np.int64)
        nodes[1:] = counts[order].cumsum()
        nodes += np.count_nonzero(kept)
        # The more rows are served, the longer the round takes, and the more tokens each of them needs.
        times = seconds(nodes)
        longer = np.where(nodes[1:] > room, np.inf, times[1:] - times[0])
        tpot = standing.tpot[standing.timed.searchsorted(order)]
        margin = (got - needed)[order] * tpot  # seconds by which the round may last longer
        places = np.arange(len(order))
        met = ((margin >= longer[:, None]) & (places <= places[:, None])).sum(axis=1)
        if met.max() > 0:
            served = np.zeros(trees.rows, np.bool_)
            served[order[: int(met.argmax()) + 1]] = True
            kept[near[served[rows]]] = True
