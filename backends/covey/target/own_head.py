"""The target's head in the target's own process: it drafts for the next pass as soon as a pass has shown its tokens.

The head's own process (`covey.drafters`) answers a call. That takes two messages of each kind, and the target's
states have to travel. Here the states are read where the pass left them, and the next pass can begin before its message
comes (`covey.target.ahead`). A row without drafts decodes plainly. A head that fails is left out, and its own
process drafts instead.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import Any

import numpy as np

from covey.contracts.types import NO_INTS, DraftWork, Ints, Open, RowStatus, Sampling
from covey.drafters.neural import NeuralDrafter
from covey.kv.sequences import Sequence
from covey.models.heads import StateMaker

log = logging.getLogger("covey.target")


@dataclass(frozen=True, slots=True)
class Wish:
    """A row to draft for, and how deep. Its last token has no KV yet."""

    row: int
    sequence: Sequence
    depth: int
    sampling: Sampling
    num_prompt: int


class OwnHead:
    """Owns the head, and how many tokens it knows of each open sequence."""

    def __init__(self, drafter: NeuralDrafter, maker: StateMaker) -> None:
        self._drafter, self._maker = drafter, maker
        self._known: dict[int, int] = {}  # by tag
        self._frees: list[int] = []
        self._failed = False

    def forget(self, tag: int) -> None:
        """Forget a sequence that is closed."""
        if self._known.pop(tag, None) is not None:
            self._frees.append(tag)

    def draft(self, rows: int, wishes: Rows[Wish]) -> dict[str, Any]:
        """Return a chain for each of `rows` rows, as fields of a reply; nothing if the head has failed."""
        if self._failed:
            return {}
        try:
            return self._drafted(rows, wishes)
        except Exception:
            log.exception("the target's own head has failed")
            self._failed = True
            return {}

    def _drafted(self, rows: int, wishes: Rows[Wish]) -> dict[str, Any]:
        chains, started, catch_up = [NO_INTS] * rows, time.perf_counter(), 0.0
        if wishes:
            reply = self._drafter.draft(self._work(wishes))
            catch_up, bounds = reply.catch_up_seconds, reply.trees.offsets.tolist()
            for wish, status, start, end in zip(wishes, reply.status.tolist(), bounds, bounds[1:]):
                if status == RowStatus.STALE:  # it was evicted: the next call opens it again
                    self._known.pop(wish.sequence.tag, None)
                    continue
                self._known[wish.sequence.tag] = wish.sequence.num_tokens
                chains[wish.row] = reply.trees.tokens[start:end]
        return {
            "draft_offsets": np.cumsum([0, *map(len, chains)], dtype=np.int32),
            "draft_tokens": np.concatenate(chains),
            "draft_seconds": max(0.0, time.perf_counter() - started - catch_up),
            "catch_up_seconds": catch_up,
        }

    def _work(self, wishes: Rows[Wish]) -> DraftWork:
        """Return the message that a call to the head's process would be."""
        opens, tokens, slots, keep = [], list[Ints](), list[Ints](), []
        for wish in wishes:
            sequence = wish.sequence
            known = self._known.get(sequence.tag)
            if known is None:
                text = sequence.tokens.copy()
                opens.append(Open(sequence.tag, text, wish.num_prompt, wish.sampling))
                tokens.append(NO_INTS)
                keep.append(len(text))
            else:
                tokens.append(sequence.tokens[known:])
                keep.append(known)
            slots.append(sequence.slots[max(0, (known or 0) - 1) : sequence.num_tokens - 1])
        frees, self._frees = tuple(self._frees), []
        count = len(wishes)
        return DraftWork(
            tags=np.fromiter((wish.sequence.tag for wish in wishes), np.int32, count),
            keep=np.asarray(keep, np.int32),
            offsets=np.cumsum([0, *map(len, tokens)], dtype=np.int32),
            tokens=np.concatenate(tokens),
            depth=np.fromiter((wish.depth for wish in wishes), np.int32, count),
            width=np.ones(count, np.int32),
            rounds=np.fromiter((wish.sequence.rounds for wish in wishes), np.int32, count),
            opens=tuple(opens),
            frees=frees,
            state_offsets=np.cumsum([0, *map(len, slots)], dtype=np.int32),
            states=self._maker.states(np.concatenate(slots)),
        )
