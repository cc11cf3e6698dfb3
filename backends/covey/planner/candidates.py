"""What selectors see of a round's candidate trees: nodes, which of them may be dropped, and how likely each is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from covey.planner.calibration import Calibration
from covey.planner.tallies import Tally
from covey.rounds import Round
from covey.scheduler import Batch
from covey.trees.paths import Array, Flags, Index, Nodes
from covey.types import Floats, RowStatus, Rule, Trees


@dataclass(frozen=True, slots=True)
class Candidates:
    """One batch's. `said` is each node's own probability by its drafter, `own` the calibrated one; `hidden` are nodes
    of which nothing may be said; `cells` are where they are counted. `free` are nodes of rows that leave their depth
    to the policy: what a request asks for by itself is not dropped."""

    trees: Trees
    nodes: Nodes
    ranks: Index
    said: Array
    own: Array
    hidden: Flags
    cells: Index
    free: Flags

    @classmethod
    def of(
        cls, batch: Batch, trees: Trees, scores: Floats, drafters: Sequence[str], calibration: Calibration
    ) -> Candidates:
        """`drafters` by row; `scores` are log path scores of the nodes, none where a drafter gives none."""
        nodes = Nodes.of(trees)
        requests = [active.request for active in batch.rows]
        auto = np.fromiter((each.speculation == "auto" for each in requests), np.bool_, len(requests))
        blind = np.ones(len(requests), np.bool_)
        said = np.full(len(trees.tokens), 0.5)
        if len(scores):
            blind = np.fromiter((each.sampling.rule is Rule.REJECTION for each in requests), np.bool_, len(requests))
            said = nodes.own(scores)
        ranks, hidden = nodes.ranks(), blind[nodes.row_of]
        cells = calibration.cells(nodes, ranks, said, calibration.index(drafters), blind)
        return cls(trees, nodes, ranks, said, calibration.own(cells, said, hidden), hidden, cells, auto[nodes.row_of])


class TreeSelector:
    """What selectors of single nodes share: they count what became of them. Owns the calibration and the totals; any
    thread may read `tally`."""

    log_q = False

    def __init__(self, drafters: Sequence[str], max_depth: int) -> None:
        self.calibration = Calibration(drafters, max_depth)
        self.tally = Tally()
        self._selected: tuple[Trees, Index, Array] | None = None  # of the last round that drafted

    def figures(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Metric, labels, value so far. Any thread may ask."""
        return self.tally.figures()

    def keep(self, found: Candidates, kept: Flags, needs: Array, allowed: int) -> Trees:
        """What is verified. `needs`: A(r) by row, and nothing (NaN) of a row that has no objective."""
        trees = found.trees if kept.all() else found.trees.nodes(kept)
        self._selected = trees, found.cells[kept], found.said[kept]
        self.tally.selected(len(kept), len(trees.tokens), allowed, needs[~np.isnan(needs)])
        return trees

    def count(self, done: Round) -> None:
        """What became of the nodes that were verified and whose parents were accepted."""
        if self._selected is None or self._selected[0] is not done.kept:
            return
        (trees, cells, said), reply = self._selected, done.reply
        self._selected = None
        nodes = Nodes.of(trees)
        accepted = nodes.accepted(trees, reply.offsets, reply.tokens, reply.accepted)
        reached = np.append(accepted, True)[nodes.above]  # the root's place is the last, where node -1 finds it
        reached &= (reply.status == RowStatus.OK)[nodes.row_of]
        self.calibration.update(cells[reached], said[reached], accepted[reached])
        self.tally.accepted(int(np.count_nonzero(accepted)))


def needs_of(batch: Batch, round_seconds: float) -> Array:
    """A(r) of every row that decodes, by the end of a round that takes so long; NaN where it has no objective."""
    needs = np.full(len(batch.rows), np.nan)
    for row, active in enumerate(batch.rows[: batch.decoding]):
        if active.request.objective.tpot < math.inf:
            needs[row] = active.needs(batch.now, round_seconds)
    return needs
