"""One depth and width for every round; what a request itself asks for goes first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from covey.planner.choice import Choice
from covey.scheduler import Batch, Live
from covey.types import TargetReply, Trees

if TYPE_CHECKING:
    from covey.engine import RoundRecord


class StaticPlanner:
    """`off` and `fixed:k`. Learns nothing."""

    def __init__(self, depth: int = 0, width: int = 1, drafters: Sequence[str] = ()) -> None:
        self.depth = depth if drafters else 0
        self.width = width
        self.drafters = tuple(drafters)

    def plan(self, batch: Batch, token_budget: int) -> Choice:
        rows = len(batch.rows)
        depth, width = np.zeros(rows, np.int32), np.ones(rows, np.int32)
        names = [""] * rows
        spare = (token_budget - int(batch.chunk.sum())) // max(1, batch.decoding)
        for row, live in enumerate(batch.rows[: batch.decoding]):
            if not self.drafters:
                break
            depth[row] = max(0, min(self._wanted(live), live.room - 1, spare))
            width[row] = max(1, min(self.width, spare // max(1, int(depth[row]))))
            names[row] = live.request.drafter or self.drafters[0]
        return Choice(depth, width, tuple(names))

    def observe(self, batch: Batch, trees: Trees, reply: TargetReply, record: RoundRecord) -> None:
        """Nothing to learn."""

    def _wanted(self, live: Live) -> int:
        speculation = live.request.speculation
        if speculation == "off":
            return 0
        if speculation.startswith("fixed:"):
            return int(speculation.removeprefix("fixed:"))
        return self.depth
