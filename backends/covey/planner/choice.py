"""A round's choice, and the interface of whoever makes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from covey.scheduler import Batch
from covey.types import Ints, TargetReply, Trees

if TYPE_CHECKING:
    from covey.engine import RoundRecord


@dataclass(frozen=True, slots=True)
class Choice:
    """Per row of the batch: draft depth (0: plain decoding), beam width, and the drafter's name."""

    depth: Ints
    width: Ints
    drafter: tuple[str, ...]


class Planner(Protocol):
    """Chooses before a round, learns after it."""

    def plan(self, batch: Batch, token_budget: int) -> Choice:
        """Does not mutate the batch. Rows past `batch.decoding` must get depth 0."""
        ...

    def select(self, batch: Batch, trees: Trees) -> Trees:
        """Which drafts are worth verifying: these, or fewer of them. Does not mutate."""
        ...

    def observe(self, batch: Batch, trees: Trees, reply: TargetReply, record: RoundRecord) -> None:
        """The round is over. What may wait is put off until `meanwhile`."""
        ...

    def meanwhile(self) -> None:
        """Called while drafters work on the round that was planned last: there is time."""
        ...
