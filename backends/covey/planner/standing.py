"""Says, in arrays for selectors, how each row of a batch stands with its objective: how much time it has left for its
next tokens, and whether its objective can still be met.

Nothing here depends on what is drafted, so it is gathered while drafters draft.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from covey.contracts.types import Rule
from covey.requests.scheduler import Batch
from covey.trees.paths import Array, Flags, Index

FACTS = 6  # of each row that has an objective


@dataclass(frozen=True, slots=True)
class Standing:
    """The rows of one batch. Those that decode and have a TPOT objective are its `timed` rows; the arrays behind
    `timed` are aligned with it."""

    fixed: Flags  # rows that ask for a depth themselves, whose drafts are not dropped
    hidden: Flags  # rows whose drafts must not be ranked by their tokens
    timed: Index
    tpot: Array  # the objective, in seconds per token
    seconds_since: Array  # since the first token; -inf before it
    tokens_since: Array  # behind the first one
    hopeless: Flags  # the objective is beyond reach

    @classmethod
    def of(cls, batch: Batch) -> Standing:
        rows, now, rejection = batch.rows, batch.now, Rule.REJECTION
        requests = [active.request for active in rows]
        timed = [row for row in range(batch.decoding) if requests[row].objective.tpot < math.inf]
        facts: list[float] = []
        for row in timed:
            active, request = rows[row], requests[row]
            first = active.first_token
            ready = request.arrival + request.objective.ttft
            facts += (request.objective.tpot, now if first is None else first, len(active.output), request.max_tokens)
            facts += (ready, first is None)
        tpot, first_token, output, most, ready_by, unread = np.array(facts, np.float64).reshape(-1, FACTS).T
        waits = unread > 0.0
        # As `ActiveRequest.hopeless` has it; a row without a first token is in no need of its next one.
        last = now + (most - output) * batch.fastest
        hopeless = ((first_token > ready_by) | (last > first_token + tpot * (most - 1.0))) & ~waits
        return cls(
            np.array([request.speculation != "auto" for request in requests], np.bool_),
            np.array([request.sampling.rule is rejection for request in requests], np.bool_),
            np.array(timed, np.int64),
            tpot,
            np.where(waits, -math.inf, now - first_token),
            np.where(waits, 1.0, output) - 1.0,
            hopeless,
        )

    def needs(self, round_seconds: float) -> Array:
        """Return AdaServe's A(r) = (l + t_round) / TPOT - o of the timed rows: how many tokens each needs of a round
        that takes so long, to be within its objective then. Negative for a row that is ahead or has no token yet.

        l and o count from the first decode step, so o leaves out the first token, which the prompt's pass brought."""
        return (self.seconds_since + round_seconds) / self.tpot - self.tokens_since
