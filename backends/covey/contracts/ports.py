"""The protocols that the engine talks to. Implementations: `covey.target`, `covey.drafters` and `covey.emulated` (in
process), `covey.tritonio` (over BLS), tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from covey.contracts.types import (
    DrafterInfo,
    DraftReply,
    DraftWork,
    Offer,
    Progress,
    Resized,
    TargetInfo,
    TargetReply,
    TargetWork,
)


class Target(Protocol):
    """The model whose output is wanted. Owns blocks, tables, prefix hashes and the requests' token histories."""

    def info(self) -> TargetInfo:
        """Return what the target is. Does not mutate. May block until the target is up."""
        ...

    def step(self, work: TargetWork) -> TargetReply:
        """Make one pass. Mutates the target; raises PortError when the pass did not happen."""
        ...

    def resize(self, blocks: int) -> Resized:
        """Have so many blocks in the pool, between two passes. Mutates the target, unless it refuses. What the pool
        has from then on every `TargetReply` says, and `info`."""
        ...


class Drafter(Protocol):
    """Proposes tokens. Owns its caches; may forget a tag at any time and answer STALE for it."""

    def info(self) -> DrafterInfo:
        """Return what the drafter is. Does not mutate. May block until the drafter is up."""
        ...

    def draft(self, work: DraftWork) -> DraftReply:
        """Catch up and propose. Mutates the drafter only; raises PortError when it could not."""
        ...


@runtime_checkable
class SharedDrafter(Drafter, Protocol):
    """A drafter that makes one pass for the calls of several senders."""

    def draft_together(self, works: Sequence[DraftWork]) -> list[DraftReply]:
        """Draft for several calls (see `draft`) of different senders that do not read; if it raises, none of them is
        answered."""
        ...


class Companion(Protocol):
    """What drafts for one request beside all drafters, in the engine's process, by what its text repeats. One thread at
    a time calls."""

    def open(self) -> None:
        """Read what the text begins with; may take long."""
        ...

    def read(self, tokens: Sequence[int]) -> None:
        """Read its next tokens."""
        ...

    def offer(self, behind: int, most: int) -> Offer:
        """Return at most so many drafts for the text, whose length is said in the offer. Does not mutate."""
        ...

    def end(self) -> None:
        """Take it that the text has ended; what it put out may serve others."""
        ...


class Residency(Protocol):
    """The port that brings drafters into memory and out of it. Calls block until that is done."""

    def unload(self, name: str) -> int:
        """Have a drafter end. Returns how many bytes it held, which are free by then; 0 where that is not known. May
        be called again, or for one that has ended; raises CoveyError where it may not have."""
        ...

    def load(self, name: str) -> DrafterInfo:
        """Have it back, warm. Raises CoveyError where it did not come."""
        ...


class Sink(Protocol):
    """The receiver of progress. Called from the engine's thread; must not block it."""

    def publish(self, batch: Sequence[Progress]) -> None: ...


class Clock(Protocol):
    """Time as the engine sees it: real, or virtual in sweeps and tests."""

    def now(self) -> float:
        """Return the time in seconds, which never goes back."""
        ...

    def sleep(self, seconds: float) -> None: ...
