"""Messages of several senders as one, for a drafter that makes one pass for all of them, and its answer in parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from covey.contracts.types import NO_FLOATS, DraftReply, DraftWork


def beside(works: Sequence[DraftWork]) -> DraftWork:
    """Return the rows of all messages, none of which reads, as far as what is drafted for them depends on it: neither
    tags, which are each sender's own, nor what is told of them."""
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
    """Return the answer to each message. All of them took as long as the pass did."""
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
