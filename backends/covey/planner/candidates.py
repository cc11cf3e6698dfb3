"""The candidate trees of a round, as selectors see them: which nodes may be dropped, and how likely each one is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from covey.contracts.types import Floats, RowStatus, Trees
from covey.planner.calibration import Calibration
from covey.planner.standing import Standing
from covey.requests.rounds import Round
from covey.trees.paths import Array, Flags, Index, Nodes

NEEDS = np.array([0.0, 1.0, 2.0, 4.0, 8.0])  # tokens of a round
LABELS = (*(f"{edge:g}" for edge in NEEDS), "+Inf")


class SelectionTotals:
    """Counts what selections did. The engine's thread adds once a round, any thread may read."""

    def __init__(self) -> None:
        self._nodes = {"proposed": 0, "selected": 0, "accepted": 0}
        self._budget = {"used": 0, "allowed": 0}
        self._needs = np.zeros(len(LABELS), np.int64)

    def selected(self, proposed: int, selected: int, allowed: int, needs: Array) -> None:
        """Count a selection. `needs` are A(r) of rows with an objective; `allowed` nodes had room."""
        self._nodes["proposed"] += proposed
        self._nodes["selected"] += selected
        self._budget["used"] += selected
        self._budget["allowed"] += max(allowed, selected)
        self._needs += np.bincount(np.searchsorted(NEEDS, needs), minlength=len(LABELS))

    def accepted(self, nodes: int) -> None:
        self._nodes["accepted"] += nodes

    def figures(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Yield metric, labels and value so far. Does not mutate."""
        for stage, nodes in self._nodes.items():
            yield "covey_tree_nodes_total", {"stage": stage}, nodes
        for of, tokens in self._budget.items():
            yield "covey_tree_budget_tokens_total", {"of": of}, tokens
        for label, rows in zip(LABELS, self._needs.tolist()):
            yield "covey_slo_needs_total", {"needs": label}, rows


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
