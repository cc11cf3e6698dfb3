"""Offers drafts found by lookup in the requests' own texts, before a round is planned.

A worker thread reads the prompt while the target computes it. The engine's thread adds each later token itself, in some
microseconds. Only requests that leave their drafts to the policy get offers, not those that name a drafter or a depth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from covey.contracts.ports import Companion
from covey.contracts.types import Offer, Open, Trees
from covey.process.worker import Worker
from covey.requests.active import ActiveRequest
from covey.requests.scheduler import Batch

FEW = 4  # rows whose texts are always followed at every token
PATIENCE, SELDOM = 4, 24  # rounds without a taken offer; then rounds between offers for larger batches


@dataclass(slots=True)
class _Followed:
    companion: Companion
    opened: Future[None]
    read: int  # tokens of the request that the companion has


class Lookups:
    """Owns the companions of running requests (`ActiveRequest.text`), which `worker` opens."""

    def __init__(self, companion: Callable[[Open], Companion], worker: Worker, most: int) -> None:
        """`companion` makes one for a new request. An offer has at most `most` tokens."""
        self._companion, self._worker, self._most = companion, worker, most
        self._untaken = 0  # rounds since an offer was taken

    def offer(self, batch: Batch) -> None:
        """Set `ActiveRequest.offer` of the batch's rows from all their tokens. If large batches have not taken offers
        lately, do so only every SELDOM rounds: it takes time."""
        self._untaken += 1
        if batch.decoding > FEW and self._untaken > PATIENCE and self._untaken % SELDOM:
            return
        for row, active in enumerate(batch.rows):
            request = active.request
            if request.drafter or request.speculation != "auto":
                continue
            active.offer = self._offered(active, row < batch.decoding)

    def taken(self) -> None:
        """Note that an offer was taken."""
        self._untaken = 0

    def forget(self, active: ActiveRequest) -> None:
        """Note that a request has ended."""
        followed: _Followed | None = active.text
        if followed is not None and followed.opened.done() and followed.opened.exception() is None:
            followed.companion.read(active.output[followed.read - len(active.request.prompt) :])
            followed.companion.end()
        active.text = active.offer = None

    def _offered(self, active: ActiveRequest, decoding: bool) -> Offer | None:
        followed: _Followed | None = active.text
        if followed is None:
            companion = self._companion(active.opening())
            active.text = _Followed(companion, self._worker.submit(_open, companion), active.num_tokens)
            return None
        if not decoding or not followed.opened.done():
            return None
        followed.opened.result()  # raises the errors of reading the prompt
        followed.companion.read(active.output[followed.read - len(active.request.prompt) :])
        followed.read = active.num_tokens
        return followed.companion.offer(active.num_tokens, min(self._most, active.room - 1))


def _open(companion: Companion) -> None:
    companion.open()


def trees_of(rows: Sequence[ActiveRequest], depths: Sequence[int]) -> Trees:
    """Return the first `depths` tokens of the requests' offers, as chains."""
    offers = [([] if active.offer is None else active.offer.tokens) for active in rows]
    return Trees.chains([offer[:depth] for offer, depth in zip(offers, depths)])
