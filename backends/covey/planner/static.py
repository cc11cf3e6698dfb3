"""One depth and width for every round; what a request itself asks for goes first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from covey.planner.choice import Choice
from covey.planner.rows import lay_out
from covey.scheduler import Batch
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
        return lay_out(batch, token_budget, self.depth, self.width, self.drafters)

    def select(self, batch: Batch, trees: Trees) -> Trees:  # noqa: ARG002
        return trees

    def observe(self, batch: Batch, trees: Trees, reply: TargetReply, record: RoundRecord) -> None:
        """Nothing to learn."""

    def meanwhile(self) -> None:
        """Nothing was put off."""
