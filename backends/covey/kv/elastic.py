"""The rules by which drafters leave so that the KV pool can grow, and come back. Decides; `covey.loop.memory` performs.

    expand    rounds in a row in which memory is short, and drafts are not worth what they hold
    contract  nothing waits, and the drafter's blocks and a margin are free, for a while

The rule is Nightjar's (6.1): drafts are not worth it where nothing is drafted, and memory is short where fewer than a
share of all blocks is free. Knows no ports and no names of drafters but as keys.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

LOW = 0.1  # share of blocks below which too few are free
PERSIST = 16  # rounds in a row that memory is short before a drafter leaves
FELT = 4  # rounds after which a larger pool has let in whom it can


@dataclass(frozen=True, slots=True)
class Pressure:
    """The state of memory after a round; `running` is 0 on an idle server."""

    free: int  # blocks
    total: int
    waiting: int = 0  # requests
    running: int = 0
    most_running: int = 0
    drafters: Mapping[str, int] = field(default_factory=dict)  # rows that each of those that drafted had

    @property
    def starved(self) -> bool:
        """Return whether requests wait for nothing but blocks."""
        return self.waiting > 0 and self.running < self.most_running

    @property
    def drafting(self) -> bool:
        return bool(self.drafters)


@dataclass(slots=True)
class Budget:
    """The bytes that drafters and pool may hold of one device together: what the pool was loaded with and all drafters
    held at first. `held` is what each drafter holds when it is there, and `first` what it held when that was first
    known."""

    least: int  # blocks, that the pool always has
    block_bytes: int
    held: dict[str, int] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)

    @property
    def whole(self) -> int:
        """Return the bytes of pool and drafters. They stay once all were there: one that died may come back larger."""
        return self.least * self.block_bytes + sum(self.first.values())

    def learn(self, name: str, held: int) -> None:
        """Note what a drafter says it holds."""
        self.held[name] = held
        if held:
            self.first.setdefault(name, held)

    def spare(self, resident: Collection[str]) -> int:
        """Return the bytes that the least pool and these drafters leave; negative where they hold more by now."""
        drafters = sum(self.held.get(name, 0) for name in resident)
        return self.whole - self.least * self.block_bytes - drafters

    def blocks(self, resident: Collection[str]) -> int:
        """Return how many blocks the pool has with these drafters in memory, rounded down."""
        spare = max(0, self.spare(resident))
        return self.least + (spare // self.block_bytes if self.block_bytes else 0)


class Never:
    """Says when drafters leave memory and come back: when they are told to and at no other time. Is told of every
    round, in order; asking it changes nothing."""

    def note(self, pressure: Pressure) -> None:
        """Learn nothing."""

    def gave(self) -> None:
        """Note that a drafter gave its bytes: the pool's gain is to be felt before another does."""

    def expands(self, gain: int) -> bool:  # noqa: ARG002
        """Return whether a drafter is to leave for so many blocks."""
        return False

    def contracts(self, pressure: Pressure, needed: int) -> bool:  # noqa: ARG002
        """Return whether the pool can spare so many blocks for a drafter."""
        return True


class Thresholds(Never):
    """Nightjar's: tau_low as a share of all blocks, T_persist in rounds."""

    def __init__(self, low: float = LOW, persist: int = PERSIST) -> None:
        self._low, self._persist = low, persist
        self._short = 0  # rounds in a row

    def note(self, pressure: Pressure) -> None:
        self._short = self._short + 1 if pressure.running and self._is_short(pressure) else 0

    def gave(self) -> None:
        self._short = max(0, self._persist - FELT)

    def expands(self, gain: int) -> bool:
        return gain > 0 and self._short >= self._persist

    def contracts(self, pressure: Pressure, needed: int) -> bool:
        return not pressure.waiting and pressure.free > needed + self._low * (pressure.total - needed)

    def _is_short(self, pressure: Pressure) -> bool:
        return not pressure.drafting and (pressure.starved or pressure.free < self._low * pressure.total)


POLICIES: dict[str, Callable[[], Never]] = {"off": Never, "thresholds": Thresholds}
