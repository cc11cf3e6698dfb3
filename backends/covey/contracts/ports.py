"""The protocols through which the engine calls other parts. Implementations: `covey.target`, `covey.drafters` and
`covey.emulated` (in process), `covey.tritonio` (over BLS), tests."""

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
    """The model that users ask for. Owns blocks, block tables, prefix hashes and the requests' token histories."""

    def info(self) -> TargetInfo:
        """Return the target's facts. Does not mutate. May block until the target is up."""
        ...

    def step(self, work: TargetWork) -> TargetReply:
        """Run one pass. Mutates the target; raises PortError if the pass did not happen."""
        ...

    def resize(self, blocks: int) -> Resized:
        """Resize the pool to `blocks` between two passes. Mutates the target unless it refuses. Later answers of `step`
        and `info` carry the new size."""
        ...


class Drafter(Protocol):
    """Proposes tokens. Owns its caches. May forget a tag at any time and then answers STALE for it."""

    def info(self) -> DrafterInfo:
        """Return the drafter's facts. Does not mutate. May block until the drafter is up."""
        ...

    def draft(self, work: DraftWork) -> DraftReply:
        """Catch up and propose. Mutates only the drafter; raises PortError on failure."""
        ...


@runtime_checkable
class SharedDrafter(Drafter, Protocol):
    """A drafter that can serve calls of several senders in one pass."""

    def draft_together(self, works: Sequence[DraftWork]) -> list[DraftReply]:
        """Draft for several calls (see `draft`) of different senders. If it raises, no call is answered."""
        ...


class Companion(Protocol):
    """A drafter for a single request, inside the engine's process. It drafts from repetition in the request's text.
    Called by one thread at a time."""

    def open(self) -> None:
        """Read the beginning of the text. May take long."""
        ...

    def read(self, tokens: Sequence[int]) -> None:
        """Read the next tokens of the text."""
        ...

    def offer(self, num_tokens: int, most: int) -> Offer:
        """Return at most `most` drafts to follow the text, which has `num_tokens` tokens. Does not mutate."""
        ...

    def end(self) -> None:
        """Note that the text has ended. Its output may serve later requests."""
        ...


class Residency(Protocol):
    """Loads drafters into memory and unloads them. Each call blocks until that is done."""

    def unload(self, name: str) -> int:
        """End a drafter. Return the bytes that it held, which are free then; 0 if unknown. May be repeated, also for an
        ended drafter. Raises CoveyError if it may not have ended."""
        ...

    def load(self, name: str) -> DrafterInfo:
        """Load a drafter and warm it up. Raises CoveyError if it did not come back."""
        ...


class Sink(Protocol):
    """Receives progress. Called from the engine's thread, and must not block it."""

    def publish(self, batch: Sequence[Progress]) -> None: ...


class Clock(Protocol):
    """The engine's time: real, or virtual in sweeps and tests."""

    def now(self) -> float:
        """Return the time in seconds. It never decreases."""
        ...

    def sleep(self, seconds: float) -> None: ...
