"""What the engine talks to. Implementations: `covey.runtime` (in process), `covey.tritonio` (over BLS), tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from covey.types import DrafterInfo, DraftReply, DraftWork, Progress, Resized, TargetInfo, TargetReply, TargetWork


class Target(Protocol):
    """The model whose output is wanted. Owns blocks, tables, prefix hashes and the requests' token histories."""

    def info(self) -> TargetInfo:
        """Does not mutate. May block until the target is up."""
        ...

    def step(self, work: TargetWork) -> TargetReply:
        """One pass. Mutates the target; raises PortError when the pass did not happen."""
        ...

    def resize(self, blocks: int) -> Resized:
        """Have so many blocks in the pool, between two passes. Mutates the target, unless it refuses. What the pool
        has from then on every `TargetReply` says, and `info`."""
        ...


class Drafter(Protocol):
    """Proposes tokens. Owns its caches; may forget a tag at any time and answer STALE for it."""

    def info(self) -> DrafterInfo:
        """Does not mutate. May block until the drafter is up."""
        ...

    def draft(self, work: DraftWork) -> DraftReply:
        """Catch up and propose. Mutates the drafter only; raises PortError when it could not."""
        ...


class Sink(Protocol):
    """Where progress goes. Called from the engine's thread; must not block it."""

    def publish(self, batch: Sequence[Progress]) -> None: ...


class Clock(Protocol):
    """Time as the engine sees it: real, or virtual in sweeps and tests."""

    def now(self) -> float:
        """Seconds, monotonic."""
        ...

    def sleep(self, seconds: float) -> None: ...
