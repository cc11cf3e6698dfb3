"""The interface of drafter policies, and the policy that always takes the first drafter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from covey.planner.rows import named
from covey.requests.active import ActiveRequest
from covey.requests.roster import Roster
from covey.requests.rounds import Judge, Round
from covey.requests.scheduler import Batch

ASKED = "asked"  # the request names its drafter, or wants none


@dataclass(frozen=True, slots=True)
class Assignment:
    """Each decoding row's drafter, and the reason in one word."""

    drafters: tuple[str, ...]
    why: tuple[str, ...]
    # If known by request: the expected tokens of a round of each depth from 0, and their relative deviation, as
    # [rows, depths].
    tokens: npt.NDArray[np.float64] | None = None
    doubt: npt.NDArray[np.float64] | None = None


class DrafterPolicy(Protocol):
    """Chooses each row's drafter before the depth is chosen for the resulting mix."""

    divergence: bool  # whether it learns from block divergence, which the target then computes
    patient: bool  # whether it may learn from a round after the next one was planned, while drafters work

    def assign(self, batch: Batch, roster: Roster) -> Assignment:
        """Return a drafter for every decoding row. A row whose drafter is unavailable decodes plainly."""
        ...

    def prepare(self, batch: Batch, roster: Roster) -> None:
        """Prepare the next rounds while drafters work on this batch."""
        ...

    def judges(self, batch: Batch, assigned: Assignment, roster: Roster) -> tuple[Judge, ...]:
        """Return the drafters that read while the target works, with the rows they read."""
        ...

    def learn(self, done: Round) -> None:
        """Learn from a finished round; drafters may have read in it even if no row decoded."""
        ...


class First:
    """Implements `DrafterPolicy`: requests that name no drafter get the first one."""

    divergence = False
    patient = True

    def assign(self, batch: Batch, roster: Roster) -> Assignment:
        return Assignment(named(batch, roster), tuple(_why(active) for active in batch.rows[: batch.decoding]))

    def prepare(self, batch: Batch, roster: Roster) -> None:
        """Prepare nothing."""

    def judges(self, batch: Batch, assigned: Assignment, roster: Roster) -> tuple[Judge, ...]:  # noqa: ARG002
        return ()

    def learn(self, done: Round) -> None:
        """Learn nothing."""


def is_free(active: ActiveRequest) -> bool:
    """Return whether the policy chooses the request's drafter."""
    return not active.request.drafter and active.request.speculation != "off"


def _why(active: ActiveRequest) -> str:
    return ASKED if active.request.drafter else "first"
