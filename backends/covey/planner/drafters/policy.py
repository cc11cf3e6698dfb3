"""The interface of whoever chooses drafters, and the choice without a choice: the first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from covey.bandits.length import Outcome, Situation
from covey.planner.rows import named
from covey.requests.active import ActiveRequest
from covey.requests.roster import Roster
from covey.requests.rounds import Reader, Round
from covey.requests.scheduler import Batch

ASKED = "asked"  # the request names its drafter, or wants none


@dataclass(frozen=True, slots=True)
class Assignment:
    """The assignment by decoding row: its drafter, and in a word why that one."""

    drafters: tuple[str, ...]
    why: tuple[str, ...]


class DrafterPolicy(Protocol):
    """Chooses each row's drafter before the depth is chosen, which is for the mix that comes of it."""

    divergence: bool  # whether it learns from block divergence, which the target then computes
    patient: bool  # may be told of a round when the next was already planned, while drafters work

    def assign(self, batch: Batch, roster: Roster) -> Assignment:
        """Assign a drafter to every decoding row. One whose drafter cannot be asked decodes plainly."""
        ...

    def prepare(self, batch: Batch, roster: Roster) -> None:
        """Drafters work on this batch, and rounds like it will follow: there is time to think ahead."""
        ...

    def readers(self, batch: Batch, assigned: Assignment, roster: Roster) -> tuple[Reader, ...]:
        """Return which drafters read which rows while the target works."""
        ...

    def learn(self, done: Round) -> None:
        """A round is over; drafters may have read in it even where no row decoded."""
        ...

    def hear(self, situation: Situation, depth: int, outcome: Outcome) -> None:
        """Learn what the round cost, in the form in which a length policy is told it."""
        ...


class First:
    """Implements `DrafterPolicy`: requests that name nobody get the first drafter."""

    divergence = False
    patient = True

    def assign(self, batch: Batch, roster: Roster) -> Assignment:
        return Assignment(named(batch, roster), tuple(_why(active) for active in batch.rows[: batch.decoding]))

    def prepare(self, batch: Batch, roster: Roster) -> None:
        """Prepare nothing."""

    def readers(self, batch: Batch, assigned: Assignment, roster: Roster) -> tuple[Reader, ...]:  # noqa: ARG002
        return ()

    def learn(self, done: Round) -> None:
        """Learn nothing."""

    def hear(self, situation: Situation, depth: int, outcome: Outcome) -> None:
        """Learn nothing."""


def is_free(active: ActiveRequest) -> bool:
    """Whether its drafter is to be chosen."""
    return not active.request.drafter and active.request.speculation != "off"


def _why(active: ActiveRequest) -> str:
    return ASKED if active.request.drafter else "first"
