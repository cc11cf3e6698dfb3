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
from covey.types import Floats, Ints, JsonDict, RowStatus, Rule, Trees


@dataclass(frozen=True, slots=True)
class Candidates:
    """One batch's. `said` is each node's own probability by its drafter, `own` the calibrated one; `hidden` are rows of
    whose nodes nothing may be said; `cells` are where nodes are counted. `asked` are rows whose requests ask for a
    depth by themselves, which is not dropped."""

    trees: Trees
    nodes: Nodes
    ranks: Ints
    said: Floats
    own: Floats
    hidden: Flags
    cells: Index
    asked: Flags

    @classmethod
    def of(
        cls, batch: Batch, trees: Trees, scores: Floats, drafters: Sequence[str], calibration: Calibration
    ) -> Candidates:
        """`drafters` by row; `scores` are log path scores of the nodes, none where a drafter gives none."""
        nodes = Nodes.of(trees)
        requests = [active.request for active in batch.rows]
        asked = np.array([each.speculation != "auto" for each in requests], np.bool_)
        if len(scores):
            hidden = np.array([each.sampling.rule is Rule.REJECTION for each in requests], np.bool_)
            said = nodes.own(scores)
        else:
            hidden, said = np.ones(len(requests), np.bool_), np.full(len(trees.tokens), 0.5, np.float32)
        ranks = nodes.ranks()
        cells = calibration.cells(nodes, ranks, said, calibration.index(drafters), hidden)
        return cls(trees, nodes, ranks, said, calibration.own(cells, said), hidden, cells, asked)

    def fixed(self) -> Flags:
        """Nodes of those that ask for a depth by themselves."""
        if not self.asked.any():
            return np.zeros(len(self.said), np.bool_)
        found: Flags = self.asked[self.nodes.row_of]
        return found


class TreeSelector:
    """What selectors of single nodes share: they count what became of them. Owns the calibration and the totals; any
    thread may read `tally`."""

    log_q = False
    yields = False

    def __init__(self, drafters: Sequence[str], max_depth: int) -> None:
        self.calibration = Calibration(drafters, max_depth)
        self.tally = Tally()
        self._selected: tuple[Trees, Candidates, Flags] | None = None  # of the last round that drafted: what was kept

    def figures(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Metric, labels, value so far. Any thread may ask."""
        return self.tally.figures()

    def state(self) -> JsonDict | None:
        """What it has learnt."""
        return self.calibration.state()

    def restore(self, state: JsonDict) -> None:
        """As `Calibration.restore`."""
        self.calibration.restore(state)

    def keep(self, found: Candidates, kept: Flags, needs: Array, allowed: int) -> Trees:
        """What is verified. `needs`: A(r) by row, and nothing (NaN) of a row that has no objective."""
        trees = found.trees if kept.all() else found.trees.nodes(kept)
        self._selected = trees, found, kept
        self.tally.selected(len(kept), len(trees.tokens), allowed, needs[~np.isnan(needs)])
        return trees

    def count(self, done: Round) -> None:
        """What became of the nodes that were verified and whose parents were accepted."""
        if self._selected is None or self._selected[0] is not done.kept:
            return
        (trees, found, kept), reply = self._selected, done.reply
        self._selected = None
        nodes = Nodes.of(trees)
        accepted = nodes.accepted(trees, reply.offsets, reply.tokens, reply.accepted)
        reached = np.append(accepted, True)[nodes.jumps[0][:-1]]  # the root's place is the last
        reached &= (reply.status == RowStatus.OK)[nodes.row_of]
        places = np.flatnonzero(kept)[reached]
        self.calibration.update(found.cells[places], found.said[places], accepted[reached])
        self.tally.accepted(int(np.count_nonzero(accepted)))


def needs_of(batch: Batch, round_seconds: float) -> Array:
    """A(r) of every row that decodes, by the end of a round that takes so long; NaN where it has no objective."""
    now, none = batch.now, math.nan
    needs = [
        active.needs(now, round_seconds) if active.request.objective.tpot < math.inf else none
        for active in batch.rows[: batch.decoding]
    ]
    return np.array(needs + [none] * (len(batch.rows) - batch.decoding))
