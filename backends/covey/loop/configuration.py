"""The configuration and hooks of an engine, beside its ports, its scheduler and its planner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from covey.contracts.errors import CoveyError, PortError
from covey.contracts.ports import Companion, Drafter
from covey.contracts.types import Open, TargetInfo
from covey.loop.memory import Memory
from covey.process.guard import Guard
from covey.process.worker import Thread, Worker
from covey.requests.roster import Roster
from covey.requests.rounds import RoundRecord

Drop = Callable[[str], None]


@dataclass(frozen=True)
class EngineConfig:
    """The settings of an engine."""

    drafters: Mapping[str, Drafter] = field(default_factory=dict)
    companion: Callable[[Open], Companion] | None = None  # makes one for a new request
    max_depth: int = 6  # of what the companion offers
    draft_deadline: float = 0.5  # seconds
    # The name by which target and drafters know this engine (`covey.wire.ledger`). Its first message closes what an
    # earlier engine of that name left open; engines of different names share a drafter.
    caller: str = ""
    info: TargetInfo | None = None  # what the target has said of itself; None: it is asked


@dataclass(frozen=True)
class EngineHooks:
    """The functions that an engine calls. The default guard raises what fails."""

    drafter_failed: Callable[[str, CoveyError], None] | None = None  # is told of every failure of a drafter
    recover: Callable[[PortError], None] | None = None  # brings back a target that failed, or raises
    observe: Callable[[RoundRecord], None] | None = None  # is told of every round
    worker: Callable[[str], Worker] = Thread  # makes the thread that a drafter's calls run in
    # Makes the part that has drafters leave memory and come back; it calls `Drop` with the name of one that leaves.
    memory: Callable[[Roster, Drop], Memory] | None = None
    guard: Guard = field(default_factory=lambda: Guard(strict=True))
