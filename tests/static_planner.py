"""A planner of one depth and width for every round; what a request itself asks for goes first."""

from __future__ import annotations

from covey.contracts.types import Trees
from covey.planner.rows import lay_out, named
from covey.requests.roster import Roster
from covey.requests.rounds import Drafted, Plan, Round
from covey.requests.scheduler import Batch


class StaticPlanner:
    """`off` and `fixed:k`. Learns nothing."""

    def __init__(self, depth: int = 0, width: int = 1) -> None:
        self.depth = depth
        self.width = width

    def plan(self, batch: Batch, roster: Roster, budget: int) -> Plan:
        return lay_out(batch, named(batch, roster), roster, budget, self.depth, self.width)

    def select(self, batch: Batch, drafted: Drafted, budget: int) -> Trees:  # noqa: ARG002
        return drafted.trees

    def prefill_allowance(self, rows: int, drafts: float, tpot: float, seconds: float) -> int | None:  # noqa: ARG002
        return None

    def learn(self, done: Round) -> None:
        """Nothing to learn."""

    def meanwhile(self) -> None:
        """Nothing was put off."""
