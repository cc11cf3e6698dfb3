"""The configuration and hooks of an engine. Ports, scheduler and planner are passed separately."""

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
    companion: Callable[[Open], Companion] | None = None  # makes one for each new request
    max_depth: int = 6  # most tokens that a companion offers
    draft_deadline: float = 0.5  # seconds
    # The name by which target and drafters know this engine (`covey.wire.ledger`). Its first message closes the
    # requests of an earlier engine of that name. Engines of different names share a drafter.
    caller: str = ""
    info: TargetInfo | None = None  # the target's facts; None: the engine asks the target
    own_head: str = ""  # the head that the target itself drafts with, before each round


@dataclass(frozen=True)
class EngineHooks:
    """The functions that an engine calls. The default guard raises every failure."""

    drafter_failed: Callable[[str, CoveyError], None] | None = None  # is called after every failure of a drafter
    recover: Callable[[PortError], None] | None = None  # brings a failed target back, or raises
    observe: Callable[[RoundRecord], None] | None = None  # is called after every round
    worker: Callable[[str], Worker] = Thread  # makes the thread for a drafter's calls
    # Makes the part that unloads and reloads drafters. It calls `Drop` before a drafter leaves.
    memory: Callable[[Roster, Drop], Memory] | None = None
    guard: Guard = field(default_factory=lambda: Guard(strict=True))
