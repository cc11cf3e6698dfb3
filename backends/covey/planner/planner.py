"""The interface between the engine and its planner."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from covey.contracts.types import Trees
from covey.process.guard import Guard
from covey.requests.roster import Roster
from covey.requests.rounds import Drafted, Plan, Round
from covey.requests.scheduler import Batch

PART = "planner"


class Planner(Protocol):
    """Chooses before a round, learns after it."""

    def plan(self, batch: Batch, roster: Roster, budget: int) -> Plan:
        """Return depth, width and drafter of each row. `budget` is the most tokens of a pass. Rows past
        `batch.decoding` must get depth 0. Does not mutate the batch."""
        ...

    def select(self, batch: Batch, drafted: Drafted, budget: int) -> Trees:
        """Return the drafts that are worth verifying: all or some of them. Does not mutate."""
        ...

    def prefill_allowance(self, rows: int, drafts: float, tpot: float, seconds: float) -> int | None:
        """Return how many prompt tokens a pass over `rows` and `drafts` can compute within `seconds`, or almost for
        free; None if unknown. In any case a round lasts no longer than a few plain ones, since rows without an
        objective wait as well. If the selector yields and a plain round takes at most `tpot` seconds, `drafts` count as
        0, because they give way to prompts."""
        ...

    def learn(self, done: Round) -> None:
        """Learn from a finished round. Work that can wait is left to `meanwhile`."""
        ...

    def meanwhile(self) -> None:
        """Do pending work while drafters work."""
        ...


class Guarded:
    """Wraps a `Planner`. After one method fails, none is called again, since they share state, and every row decodes
    plainly."""

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

    def meanwhile(self) -> None:
        self._guard(PART, self._planner.meanwhile)


def _plain(rows: int) -> Plan:
    return Plan(np.zeros(rows, np.int32), np.ones(rows, np.int32), ("",) * rows)
