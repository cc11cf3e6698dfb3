"""One call to a shared drafter, and its answer where nothing is drafted."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from covey.contracts.errors import CoveyError
from covey.contracts.types import DraftReply, DraftWork, RowStatus, Trees
from covey.wire.ledger import INCARNATION_BITS

log = logging.getLogger("covey.star")

Answered = Callable[[DraftReply | CoveyError], None]


@dataclass(slots=True, eq=False)
class Call:
    """`work.origin` is one that no other server's call can have (`covey.star.callers`)."""

    work: DraftWork
    caller: str  # whose targets ask: the name of a server, "" for this one
    arrived: float
    answered: Answered | None = None

    @property
    def who(self) -> int:
        """Return the sender, whichever its incarnation."""
        return self.work.origin >> INCARNATION_BITS

    @property
    def due(self) -> float:
        """Return the time until which an answer is of use."""
        return self.arrived + (self.work.patience or float("inf"))

    @property
    def depth(self) -> int:
        return int(self.work.depth.max(initial=0))

    @property
    def beams(self) -> int:
        """Return the beams of all the call's rows: what a level of its draft works on."""
        return int(self.work.width.sum())

    def answer(self, reply: DraftReply | CoveyError) -> None:
        answered, self.answered = self.answered, None  # nobody is answered twice
        try:
            if answered is not None:
                answered(reply)
        except Exception:  # its sender is gone, or there is no memory to send: nothing to those whose calls follow
            log.exception("an answer of a shared drafter could not be sent")


def plainly(work: DraftWork, epoch: int, wait: float, again: float = 0.0) -> DraftReply:
    """Answer `decode plainly`: the drafter was told nothing of the message. What it held before it still holds, and
    what the message opens is to be opened again. What the message frees is the answerer's to remember."""
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
