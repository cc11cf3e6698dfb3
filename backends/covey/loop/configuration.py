"""The configuration and hooks of an engine, beside its ports, its scheduler and its planner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from covey.contracts.errors import CoveyError, PortError
from covey.contracts.ports import Drafter
from covey.contracts.profile import SpeculationSettings
from covey.contracts.types import TargetInfo
from covey.loop.memory import Memory
from covey.process.guard import Guard
from covey.process.worker import Thread, Worker
from covey.requests.roster import Roster
from covey.requests.rounds import RoundRecord

Drop = Callable[[str], None]


@dataclass(frozen=True)
class EngineConfig:
    """Says how an engine is set. Engines of several names share a drafter."""

    drafters: Mapping[str, Drafter] = field(default_factory=dict)
    draft_deadline: float = 0.5  # seconds
    # What this engine and those after it are to target and drafters: what an engine of the same name left there when
    # it ended is closed.
    caller: str = ""
    info: TargetInfo | None = None  # what the target has said of itself; it is asked where it has not

    @classmethod
    def of(
        cls,
        settings: SpeculationSettings,
        drafters: Mapping[str, Drafter],
        caller: str = "",
        info: TargetInfo | None = None,
    ) -> EngineConfig:
        """Make one as a profile says."""
        return cls(drafters, settings.draft_deadline_ms / 1000, caller, info)


@dataclass(frozen=True)
class EngineHooks:
    """Names whom an engine asks and tells. Without a `guard` what fails raises."""

    drafter_failed: Callable[[str, CoveyError], None] | None = None  # is told of every failure of a drafter
    recover: Callable[[PortError], None] | None = None  # brings back a target that failed, or raises
    observe: Callable[[RoundRecord], None] | None = None  # is told of every round
    plain: Callable[[], float | None] = lambda: None  # seconds of a token without drafts, which drafters are told
    worker: Callable[[str], Worker] = Thread  # makes what a drafter's calls run in
    # Makes what has drafters leave and come back, of the roster and whom to tell of one that is asked nothing more.
    memory: Callable[[Roster, Drop], Memory] | None = None
    guard: Guard = field(default_factory=lambda: Guard(strict=True))
