"""The interface of whoever chooses what a round does."""

from __future__ import annotations

from typing import Protocol

from covey.contracts.types import Trees
from covey.requests.roster import Roster
from covey.requests.rounds import Drafted, Plan, Round
from covey.requests.scheduler import Batch


class Planner(Protocol):
    """Chooses before a round, learns after it."""

    def plan(self, batch: Batch, roster: Roster, budget: int) -> Plan:
        """Does not mutate the batch. `budget`: tokens of a pass. Rows past `batch.decoding` must get depth 0."""
        ...

    def select(self, batch: Batch, drafted: Drafted, budget: int) -> Trees:
        """Return the drafts that are worth verifying: these, or fewer of them. Does not mutate."""
        ...

    def readable(self, rows: int, drafts: float, tpot: float, seconds: float) -> int | None:
        """Tokens of prompts that a pass over so many rows and drafts can read within these seconds, or that cost it
        hardly anything. Where drafts are chosen by the time that is left they come afterwards, unless rows need them:
        who is to get a token in `tpot` seconds, and would not by plain rounds. None where it is not known."""
        ...

    def learn(self, done: Round) -> None:
        """The round is over. What may wait is put off until `meanwhile`."""
        ...

    def meanwhile(self, batch: Batch, plan: Plan, roster: Roster) -> None:
        """Use the time in which drafters work on that plan of this batch."""
        ...
