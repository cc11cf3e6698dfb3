"""One depth and width for every round; what a request itself asks for goes first."""

from __future__ import annotations

from collections.abc import Sequence

from covey.planner.rows import lay_out
from covey.rounds import Drafted, Plan, Round
from covey.scheduler import Batch
from covey.types import Trees


class StaticPlanner:
    """`off` and `fixed:k`. Learns nothing."""

    def __init__(self, depth: int = 0, width: int = 1, drafters: Sequence[str] = ()) -> None:
        self.depth = depth if drafters else 0
        self.width = width
        self.drafters = tuple(drafters)

    def plan(self, batch: Batch, budget: int) -> Plan:
        return lay_out(batch, budget, self.depth, self.width, self.drafters)

    def select(self, batch: Batch, drafted: Drafted, budget: int) -> Trees:  # noqa: ARG002
        return drafted.trees

    def learn(self, done: Round) -> None:
        """Nothing to learn."""

    def meanwhile(self, plan: Plan) -> None:
        """Nothing was put off."""
