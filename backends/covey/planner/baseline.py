"""Knows the baseline: the time per token of one request that decodes plainly on an idle server.

Relative latency classes are multiples of it. It comes from the cost table, or else from plain rounds of one row.
"""

from __future__ import annotations

import statistics
from collections import deque

from covey.requests.rounds import RoundRecord
from covey_client.costs.surface import Surface
from covey_client.costs.table import CostTable

LEAST, MOST = 8, 64  # rounds that an estimate needs, and the last rounds that are kept


class Baseline:
    """Owns the baseline. Only the engine's thread updates it; any thread may read `seconds`."""

    def __init__(self, costs: CostTable | None = None) -> None:
        self.seconds = None if costs is None else _token_seconds(costs)
        self._measured = self.seconds is not None
        self._seen: deque[float] = deque(maxlen=MOST)

    def update(self, record: RoundRecord) -> None:
        """Learn from a finished round, if it was a plain one of a single row."""
        if (
            self._measured
            or (record.rows, record.decoding, record.emitted) != (1, 1, 1)
            or record.plan.depth.any()
            or record.plan.next_depth.any()
        ):
            return
        if not record.waiting:
            self._seen.append(
                record.plan_seconds + record.draft_seconds + record.verify_seconds + record.commit_seconds
            )
        if len(self._seen) >= LEAST:
            self.seconds = statistics.median(self._seen)


def _token_seconds(costs: CostTable) -> float | None:
    """Return the table's time of a plain round of one row, else that of its pass plus overhead, else None."""
    plain = dict(costs.plain)
    if 1 in plain:
        return plain[1]
    if not any(rows == 1 for rows, _, _ in costs.verify):
        return None
    return Surface(costs.verify)(1, 1) + dict(costs.overhead).get(1, 0.0)
