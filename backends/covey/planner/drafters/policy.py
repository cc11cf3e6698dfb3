"""The interface of drafter policies, and the policy that always takes the first drafter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from covey.planner.rows import named
from covey.requests.active import ActiveRequest
from covey.requests.roster import Roster
from covey.requests.rounds import Round
from covey.requests.scheduler import Batch

ASKED = "asked"  # the request names its drafter; by a bandit also: it wants none


@dataclass(frozen=True, slots=True)
class Assignment:
    """Each decoding row's drafter, and the reason in one word."""

    drafters: tuple[str, ...]
    why: tuple[str, ...]


class DrafterPolicy(Protocol):
    """Chooses each row's drafter before the depth is chosen for the resulting mix."""

    divergence: bool  # whether it learns from block divergence, which the target then computes

    def assign(self, batch: Batch, roster: Roster) -> Assignment:
        """Return a drafter for every decoding row. A row whose drafter is unavailable decodes plainly."""
        ...

    def learn(self, done: Round) -> None:
        """Learn from a finished round before the next one is planned."""
        ...


class First:
    """Implements `DrafterPolicy`: requests that name no drafter get the first one."""

    divergence = False

    def assign(self, batch: Batch, roster: Roster) -> Assignment:
        return Assignment(named(batch, roster), tuple(_why(active) for active in batch.rows[: batch.decoding]))

    def learn(self, done: Round) -> None:
        """Learn nothing."""


def is_free(active: ActiveRequest) -> bool:
    """Return whether the policy chooses the request's drafter."""
    return not active.request.drafter and active.request.speculation != "off"


def _why(active: ActiveRequest) -> str:
    return ASKED if active.request.drafter else "first"
