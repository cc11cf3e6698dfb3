"""Has memory breathe on emulated devices: what loading and unloading take is slept in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from covey.contracts.ports import Drafter, Target
from covey.contracts.profile import MemorySettings
from covey.contracts.types import DrafterInfo
from covey.kv.elastic import POLICIES, Budget
from covey.loop.memory import Memory
from covey.requests.roster import Roster
from loadtest.simulation.virtual import VirtualClock

UNLOAD_SECONDS, LOAD_SECONDS = 0.2, 3.0  # for a process to end, or to start and read its weights


def breathing(
    settings: MemorySettings, target: Target, drafters: Mapping[str, Drafter], clock: VirtualClock
) -> Callable[[Roster, Callable[[str], None]], Memory]:
    """Return what makes an engine's memory."""
    info = target.info()

    def made(roster: Roster, drop: Callable[[str], None]) -> Memory:
        return Memory(
            *(target, _EmulatedResidency(drafters, clock), roster, clock),
            POLICIES[settings.policy](),
            Budget(info.least_blocks, info.block_bytes),
            worker=clock.worker("residency"),
            drop=drop,
            calm=settings.calm_seconds,
            breathes=settings.policy != "off",
        )

    return made


class _EmulatedResidency:
    """Implements `covey.contracts.ports.Residency`."""

    def __init__(self, drafters: Mapping[str, Drafter], clock: VirtualClock) -> None:
        self._drafters, self._clock = drafters, clock

    def unload(self, name: str) -> int:
        self._clock.sleep(UNLOAD_SECONDS)
        return self._drafters[name].info().resident_bytes

    def load(self, name: str) -> DrafterInfo:
        self._clock.sleep(LOAD_SECONDS)
        return self._drafters[name].info()
