"""Joins messages of several senders into one, so that a drafter makes one pass for all of them; splits its reply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from covey.contracts.types import NO_FLOATS, DraftReply, DraftWork


def batched(works: Sequence[DraftWork]) -> DraftWork:
    """Return one message with the rows of all `works`. It holds only what drafts depend on.
    Its tags can only be counted, because senders number them independently."""
    first = works[0]
    return DraftWork(
        tags=np.concatenate([work.tags for work in works]),
        keep=np.concatenate([work.keep for work in works]),
        offsets=first.offsets[:1],
        tokens=first.tokens[:0],
        depth=np.concatenate([work.depth for work in works]),
        width=np.concatenate([work.width for work in works]),
        rounds=np.concatenate([work.rounds for work in works]),
        q_rows=any(work.q_rows for work in works),
        log_q=any(work.log_q for work in works),
    )


def parted(reply: DraftReply, works: Sequence[DraftWork]) -> list[DraftReply]:
    """Return the reply to each message. All have the timings of the whole pass."""
    parts, start = [], 0
    for work in works:
        end = start + len(work.tags)
        trees = reply.trees.part(start, end)
        if not work.q_rows:
            trees = replace(trees, q_ids=None, q_probs=None)
        if not work.log_q:
            trees = replace(trees, log_q=NO_FLOATS)
        parts.append(replace(reply, status=reply.status[start:end], seen=reply.seen[start:end], trees=trees))
        start = end
    return parts
