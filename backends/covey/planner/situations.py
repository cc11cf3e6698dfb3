"""From a batch to what a length policy is asked about it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from covey.bandits.length import Situation
from covey.planner.rows import lay_out, spare
from covey.scheduler import Batch

NOBODY = Situation(0, 0)  # leaves its depth to the policy


def situation_of(
    batch: Batch, budget: int, previous: int, *, max_depth: int, width: int, drafters: Sequence[str]
) -> Situation:
    """The batch as the policy sees it; `NOBODY` where its answer would not matter."""
    if not drafters or all(live.request.speculation != "auto" for live in batch.rows[: batch.decoding]):
        return NOBODY
    rows = batch.decoding
    counts: dict[str, int] = {}
    lag = missed = 0
    alike = True  # every row drafts a chain of the policy's depth
    for live in batch.rows[:rows]:
        if live.request.speculation != "auto":
            alike = False
            continue
        name = live.request.drafter or drafters[0]
        counts[name] = counts.get(name, 0) + 1
        unseen = live.known - live.seen.get(name, 0)
        lag = max(lag, unseen)
        missed += unseen
    ceiling = max(0, min(max_depth, spare(batch, budget)))
    prefill = int(batch.chunk[rows:].sum()) if len(batch.rows) > rows else 0
    drafts: tuple[int, ...] = ()
    if not alike or width > 1:  # tokens that all rows are asked to draft, by the policy's depth
        plans = (lay_out(batch, budget, depth, width, drafters) for depth in range(max_depth + 1))
        drafts = tuple(int(np.dot(plan.depth, plan.width)) for plan in plans)
    return Situation(rows, ceiling, previous, lag, tuple(counts.items()), prefill, missed, drafts)
