"""A call to a shared drafter, and its answer when nothing is drafted."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from covey.contracts.errors import CoveyError
from covey.contracts.types import DraftReply, DraftWork, RowStatus, Trees
from covey.wire.ledger import INCARNATION_BITS

log = logging.getLogger("covey.drafters")

HERE = ""  # the name of this server as a caller
Answered = Callable[[DraftReply | CoveyError], None]


@dataclass(slots=True, eq=False)
class Call:
    """One call. `work.origin` is unique to its sender (`covey.star.callers`)."""

    work: DraftWork
    caller: str  # the name of the asking server
    arrived: float
    answered: Answered | None = None

    @property
    def who(self) -> int:
        """Return the sender's number, without its incarnation."""
        return self.work.origin >> INCARNATION_BITS

    @property
    def due(self) -> float:
        """Return the time after which the answer is useless."""
        return self.arrived + (self.work.patience or float("inf"))

    @property
    def depth(self) -> int:
        return int(self.work.depth.max(initial=0))

    @property
    def beams(self) -> int:
        """Return the beams of all rows: the work of one level of the draft."""
        return int(self.work.width.sum())

    def answer(self, reply: DraftReply | CoveyError) -> None:
        answered, self.answered = self.answered, None  # answer only once
        try:
            if answered is not None:
                answered(reply)
        except Exception:  # the sender is gone, or memory is short: later calls must not suffer
            log.exception("cannot send a shared drafter's answer to its caller")


def plainly(work: DraftWork, epoch: int, wait: float, again: float = 0.0) -> DraftReply:
    """Return the answer "decode plainly". The drafter has not seen the message: its state is unchanged, the sender
    opens its requests again, and the caller of this function keeps the frees."""
    opened = [opening.tag for opening in work.opens]
    return DraftReply(
        status=np.full(len(work.tags), RowStatus.SKIPPED, np.int32),
        seen=np.where(np.isin(work.tags, opened), 0, work.keep).astype(np.int32),
        trees=Trees.empty(len(work.tags)),
        epoch=epoch,
        catch_up_seconds=0.0,
        draft_seconds=0.0,
        wait_seconds=wait,
        again_seconds=again,
    )
