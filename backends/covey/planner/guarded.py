"""A fallback for a planner that fails: from then on every row decodes plainly."""

from __future__ import annotations

import numpy as np

from covey.contracts.types import Trees
from covey.planner.planner import Planner
from covey.process.guard import Guard
from covey.requests.roster import Roster
from covey.requests.rounds import Drafted, Plan, Round
from covey.requests.scheduler import Batch

PART = "planner"


class Guarded:
    """Wraps a `Planner`. After one method fails, none is called again, since they share state."""

    def __init__(self, planner: Planner, guard: Guard) -> None:
        self._planner = planner
        self._guard = guard

    def plan(self, batch: Batch, roster: Roster, budget: int) -> Plan:
        plan = self._guard(PART, self._planner.plan, batch, roster, budget)
        return _plain(len(batch.rows)) if plan is None else plan

    def select(self, batch: Batch, drafted: Drafted, budget: int) -> Trees:
        """Return the selector's trees, or all drafts if it has failed: the pass has room for them."""
        kept = self._guard(PART, self._planner.select, batch, drafted, budget)
        return drafted.trees if kept is None else kept

    def prefill_allowance(self, rows: int, drafts: float, tpot: float, seconds: float) -> int | None:
        return self._guard(PART, self._planner.prefill_allowance, rows, drafts, tpot, seconds)

    def learn(self, done: Round) -> None:
        self._guard(PART, self._planner.learn, done)

    def meanwhile(self, plan: Plan) -> None:
        self._guard(PART, self._planner.meanwhile, plan)


def _plain(rows: int) -> Plan:
    return Plan(np.zeros(rows, np.int32), np.ones(rows, np.int32), ("",) * rows)
