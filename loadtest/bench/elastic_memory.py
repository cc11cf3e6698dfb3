"""Has memory breathe on emulated devices: what loading and unloading take is slept in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from covey.contracts.ports import Drafter, Target
from covey.contracts.profile import MemorySettings
from covey.contracts.types import DrafterInfo
from covey.kv.elastic import POLICIES, Budget
from covey.loop.memory import Memory
from covey.requests.roster import Roster
from loadtest.simulation.virtual import VirtualClock


@dataclass(frozen=True, slots=True)
class Elastic:
    """Says when drafters leave, and how long it takes them: a process ends, or is started and reads its weights."""

    settings: MemorySettings = field(default_factory=lambda: MemorySettings(policy="goodput"))
    unload_seconds: float = 0.2
    load_seconds: float = 3.0

    def memory(
        self, target: Target, drafters: Mapping[str, Drafter], clock: VirtualClock
    ) -> Callable[[Roster, Callable[[str], None]], Memory]:
        """Return what makes an engine's memory."""
        info = target.info()

        def made(roster: Roster, drop: Callable[[str], None]) -> Memory:
            return Memory(
                *(target, _EmulatedResidency(self, drafters, clock), roster, clock),
                POLICIES[self.settings.policy](self.settings),
                Budget(info.least_blocks, info.block_bytes, self.settings.budget_mb << 20),
                worker=clock.worker("residency"),
                drop=drop,
                calm=self.settings.calm_seconds,
                breathes=self.settings.policy != "off",
            )

        return made


class _EmulatedResidency:
    """Implements `covey.contracts.ports.Residency`."""

    def __init__(self, times: Elastic, drafters: Mapping[str, Drafter], clock: VirtualClock) -> None:
        self._times, self._drafters, self._clock = times, drafters, clock

    def unload(self, name: str) -> int:
        self._clock.sleep(self._times.unload_seconds)
        return self._drafters[name].info().resident_bytes

    def load(self, name: str) -> DrafterInfo:
        self._clock.sleep(self._times.load_seconds)
        return self._drafters[name].info()
