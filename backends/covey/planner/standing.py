"""Tells selectors how each row stands with its latency objective: the tokens it needs, and whether it is hopeless."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from covey.contracts.types import Rule
from covey.requests.scheduler import Batch
from covey.trees.paths import Array, Flags, Index


@dataclass(frozen=True, slots=True)
class Standing:
    """The rows of one batch. `timed` are the decoding rows with a TPOT objective; the arrays below it follow its
    order."""

    fixed: Flags  # rows that ask for a depth themselves, whose drafts are not dropped
    hidden: Flags  # rows whose drafts must not be ranked by their tokens
    timed: Index
    tpot: Array  # the objective, in seconds per token
    seconds_since: Array  # since the first token; -inf before it
    tokens_since: Array  # emitted after the first token
    hopeless: Flags  # the objective can no longer be met

    @classmethod
    def of(cls, batch: Batch) -> Standing:
        rows, now = batch.rows, batch.now
        timed = [row for row in range(batch.decoding) if rows[row].request.objective.tpot < math.inf]
        # A row that waits for its first token does not need its next one yet.
        actives = [(active, active.first_token) for active in (rows[row] for row in timed)]
        return cls(
            np.array([active.request.speculation != "auto" for active in rows], np.bool_),
            np.array([active.request.sampling.rule is Rule.REJECTION for active in rows], np.bool_),
            np.array(timed, np.int64),
            np.array([active.request.objective.tpot for active, _ in actives], np.float64),
            np.array([-math.inf if first is None else now - first for _, first in actives], np.float64),
            np.array([max(0, len(active.output) - 1) for active, _ in actives], np.float64),
            np.array([first is not None and each.hopeless(now, batch.fastest) for each, first in actives], np.bool_),
        )

    def needs(self, round_seconds: float) -> Array:
        """Return the tokens that each timed row needs from a round of this length to meet its objective. This is
        AdaServe's A(r) = (l + t_round) / TPOT - o, negative for a row that is ahead or has no token yet.

        l and o count from the first decode step, so o leaves out the first token, which the prompt's pass emits."""
        return (self.seconds_since + round_seconds) / self.tpot - self.tokens_since
