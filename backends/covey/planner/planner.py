"""The interface between the engine and its planner."""

from __future__ import annotations

from typing import Protocol

from covey.contracts.types import Trees
from covey.requests.roster import Roster
from covey.requests.rounds import Drafted, Plan, Round
from covey.requests.scheduler import Batch


class Planner(Protocol):
    """Chooses before a round, learns after it."""

    def plan(self, batch: Batch, roster: Roster, budget: int) -> Plan:
        """Return depth, width and drafter of each row. `budget` is the tokens of a pass. Rows past `batch.decoding`
        must get depth 0. Does not mutate the batch."""
        ...

    def select(self, batch: Batch, drafted: Drafted, budget: int) -> Trees:
        """Return the drafts that are worth verifying: these, or fewer of them. Does not mutate."""
        ...

    def prefill_allowance(self, rows: int, drafts: float, tpot: float, seconds: float) -> int | None:
        """Return how many prompt tokens a pass over so many rows and drafts can compute within these seconds, or almost
        for free; None if that is not known. However long the seconds are, a round may last no longer than a few plain
        ones: rows without an objective wait for prompts, too. Selectors that yield draft in the time that is left
        afterwards, unless rows that want a token each `tpot` seconds would not get them by plain rounds."""
        ...

    def learn(self, done: Round) -> None:
        """Learn from a round that is over. What may wait is put off until `meanwhile`."""
        ...

    def meanwhile(self, batch: Batch, plan: Plan, roster: Roster) -> None:
        """Use the time in which drafters work on that plan of this batch."""
        ...
