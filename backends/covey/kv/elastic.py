"""Decides when drafters unload so that the KV pool can grow, and when they reload. `covey.loop.memory` carries it out.

    expand    memory is short for some consecutive rounds, and no drafter drafts
    contract  no request waits, and the drafter's blocks and a margin are free

The rule is Nightjar's (6.1). Memory is short if requests wait only for blocks, or the share of free blocks is below a
threshold. Knows no ports, and drafters only by name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

LOW = 0.1  # share of free blocks below which memory is short
PERSIST = 16  # consecutive rounds of short memory before a drafter unloads
FELT = 4  # rounds until a larger pool has admitted the requests that fit


@dataclass(frozen=True, slots=True)
class Pressure:
    """The state of memory after a round; `running` is 0 on an idle server."""

    free: int  # blocks
    total: int
    waiting: int = 0  # requests
    running: int = 0
    most_running: int = 0
    drafters: Mapping[str, int] = field(default_factory=dict)  # rows that each drafter drafted for

    @property
    def starved(self) -> bool:
        """Return whether requests wait only for blocks."""
        return self.waiting > 0 and self.running < self.most_running

    @property
    def drafting(self) -> bool:
        return bool(self.drafters)


@dataclass(slots=True)
class Budget:
    """The bytes of one device that drafters and pool may hold together: the pool's at load plus all drafters' at first.
    `held` is each drafter's bytes while loaded, and `first` the first value known."""

    least: int  # blocks that the pool always has
    block_bytes: int
    held: dict[str, int] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)

    @property
    def whole(self) -> int:
        """Return the bytes of pool and drafters. They do not change after all drafters were loaded once."""
        return self.least * self.block_bytes + sum(self.first.values())

    def learn(self, name: str, held: int) -> None:
        """Note the bytes that a drafter reports."""
        self.held[name] = held
        if held:
            self.first.setdefault(name, held)

    def spare(self, resident: Collection[str]) -> int:
        """Return the bytes that the least pool and these drafters leave; negative if they exceed the budget."""
        drafters = sum(self.held.get(name, 0) for name in resident)
        return self.whole - self.least * self.block_bytes - drafters

    def blocks(self, resident: Collection[str]) -> int:
        """Return how many blocks the pool may have with these drafters in memory, rounded down."""
        spare = max(0, self.spare(resident))
        return self.least + (spare // self.block_bytes if self.block_bytes else 0)


class Never:
    """The policy without automatic moves: drafters unload and reload only on command. `note` must get every round in
    order; `expands` and `contracts` do not mutate."""

    def note(self, pressure: Pressure) -> None:
        """Learn nothing."""

    def gave(self) -> None:
        """Note that a drafter gave its bytes, so that the next one waits until the larger pool has an effect."""

    def expands(self, gain: int) -> bool:  # noqa: ARG002
        """Return whether a drafter must unload to give the pool `gain` blocks."""
        return False

    def contracts(self, pressure: Pressure, needed: int) -> bool:  # noqa: ARG002
        """Return whether the pool can spare `needed` blocks for a drafter."""
        return True


class Thresholds(Never):
    """Nightjar's rule: `low` is tau_low, a share of all blocks, and `persist` is T_persist, in rounds."""

    def __init__(self, low: float = LOW, persist: int = PERSIST) -> None:
        self._low, self._persist = low, persist
        self._short = 0  # consecutive rounds of short memory

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
