"""The candidate trees of a round, as selectors see them: which nodes may be dropped, and how likely each one is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from covey.contracts.types import Floats, RowStatus, Trees
from covey.planner.calibration import Calibration
from covey.planner.selection_totals import SelectionTotals
from covey.planner.standing import Standing
from covey.requests.rounds import Round
from covey.trees.paths import Array, Flags, Index, Nodes


@dataclass(frozen=True, slots=True)
class Candidates:
    """The candidates of one batch: their trees, and arrays by node or by row."""

    trees: Trees
    nodes: Nodes
    said: Floats  # each node's own probability, by its drafter
    own: Floats  # the same, calibrated
    hidden: Flags  # rows whose nodes must not be ranked by these probabilities
    cells: Index  # where `Calibration` counts each node
    fixed_rows: Flags  # rows that ask for a depth themselves (`Standing.fixed`)

    @classmethod
    def of(
        cls, standing: Standing, trees: Trees, scores: Floats, drafters: Sequence[str], calibration: Calibration
    ) -> Candidates:
        """Return the candidates; `drafters` are by row, `scores` the nodes' log path scores, or empty."""
        nodes = Nodes.of(trees)
        if len(scores):
            hidden, said = standing.hidden, nodes.own(scores)
        else:
            hidden, said = np.ones(trees.rows, np.bool_), np.full(len(trees.tokens), 0.5, np.float32)
        cells = calibration.cells(nodes, nodes.ranks(), said, calibration.index(drafters), hidden)
        return cls(trees, nodes, said, calibration.own(cells, said), hidden, cells, standing.fixed)

    def fixed(self) -> Flags:
        """Return the mask of nodes that no selection may drop: those of rows that ask for a depth themselves."""
        if not self.fixed_rows.any():
            return np.zeros(len(self.said), np.bool_)
        found: Flags = self.fixed_rows[self.nodes.row_of]
        return found


class TreeSelector:
    """The base class of selectors of single nodes. Owns calibration and totals; any thread may read `totals`."""

    log_q = False
    yields = False

    def __init__(self, drafters: Sequence[str], max_depth: int) -> None:
        self.calibration = Calibration(drafters, max_depth)
        self.totals = SelectionTotals()
        self._selected: tuple[Trees, Candidates, Flags] | None = None  # the last selection

    def figures(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Yield metric, labels and value. Thread-safe."""
        return self.totals.figures()

    def keep(self, found: Candidates, kept: Flags, needs: Array, allowed: int) -> Trees:
        """Return the trees to verify. `needs` holds A(r) of the rows with an objective."""
        trees = found.trees if kept.all() else found.trees.nodes(kept)
        self._selected = trees, found, kept
        self.totals.selected(len(kept), len(trees.tokens), allowed, needs)
        return trees

    def count(self, done: Round) -> None:
        """Count which verified nodes were accepted, among those whose parents were."""
        if self._selected is None or self._selected[0] is not done.kept:
            return
        (trees, found, kept), reply = self._selected, done.reply
        self._selected = None
        nodes = Nodes.of(trees)
        accepted = nodes.accepted(trees, reply.offsets, reply.tokens, reply.accepted)
        reached = np.append(accepted, True)[nodes.jumps[0][:-1]]  # the root's place is the last
        reached &= (reply.status == RowStatus.OK)[nodes.row_of]
        places = np.flatnonzero(kept)[reached]
        self.calibration.update(found.cells[places], accepted[reached])
        self.totals.accepted(int(np.count_nonzero(accepted)))
