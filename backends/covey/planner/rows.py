"""From one depth for the batch to what each row does: its request's own wish first, then its room and the budget."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from covey.rounds import Plan
from covey.scheduler import Batch, Live
from covey.types import Rule


def spare(batch: Batch, token_budget: int) -> int:
    """Draft tokens that each decoding row may add to the pass."""
    return (token_budget - int(batch.chunk.sum())) // max(1, batch.decoding)


def own_depth(live: Live) -> int | None:
    """The depth that the request itself asks for; None: it leaves it to the policy."""
    speculation = live.request.speculation
    if speculation == "auto":
        return None
    return 0 if speculation == "off" else int(speculation.removeprefix("fixed:"))


def lay_out(batch: Batch, token_budget: int, depth: int, width: int, drafters: Sequence[str]) -> Plan:
    """`depth` for every decoding row that asks for none, clipped to what it may still emit and to the budget; chains
    under the rejection rule, which verifies nothing else. Without drafters every row decodes plainly."""
    rows = len(batch.rows)
    depths, widths, names = [0] * rows, [1] * rows, [""] * rows
    if drafters:
        most = spare(batch, token_budget)
        first = drafters[0]
        for row, live in enumerate(batch.rows[: batch.decoding]):
            own = own_depth(live)
            wanted = max(0, min(depth if own is None else own, live.room - 1, most))
            depths[row] = wanted
            if width > 1 and wanted and live.request.sampling.rule is not Rule.REJECTION:
                widths[row] = max(1, min(width, most // wanted))
            names[row] = live.request.drafter or first
    return Plan(np.array(depths, np.int32), np.array(widths, np.int32), tuple(names))
