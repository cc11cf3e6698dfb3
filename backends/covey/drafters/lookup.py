"""Drafters without weights: tokens that followed the same last tokens before are likely to follow again.

N-gram and suffix drafters share this: tags and their tokens behind `covey.contracts.ports.Drafter`, and growing trees.
A `Lookup` decides what to look up. Proposals depend only on tokens, so a proposed token's q row gives it probability 1.
Under the rejection rule trees are chains.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from covey.contracts.profile import DrafterSettings
from covey.contracts.types import (
    SPARSE,
    DrafterInfo,
    DraftReply,
    DraftWork,
    Open,
    RowStatus,
    Rule,
    Trees,
)
from covey.models.identity import identity
from covey.wire.ledger import Ledger
from covey_client.wire import BAN


@dataclass(frozen=True, slots=True)
class Child:
    """A token that followed a place, its estimated probability, and the place after it."""

    token: int
    share: float  # below 1
    place: Hashable
    matched: int  # length of the match that found the place's likeliest child


def offer(shares: dict[int, float], counts: Iterable[tuple[int, int]], most: int) -> None:
    """Add the continuations of a shorter context to those of longer ones, at most `most` in all. Each context leaves
    1 / (its count + 1) of the probability to unseen tokens, and the next context divides that."""
    candidates = list(counts)
    total = sum(count for _, count in candidates) + 1
    left = 1.0 - sum(shares.values())
    for token, count in candidates:
        if len(shares) >= most:
            break
        if token not in shares:
            shares[token] = left * count / total


class Lookup(ABC):
    """The tokens of one tag and their earlier occurrences. New tokens wait in `unread` until they are read."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.unread: list[int] = []
        self.num_prompt = 0
        self.chains = False  # whether its rule takes chains only
        self.banned: frozenset[int] = frozenset()  # tokens that its request's bias excludes

    @property
    def num_tokens(self) -> int:
        return len(self.tokens) + len(self.unread)

    @abstractmethod
    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text."""

    @abstractmethod
    def clear(self) -> None:
        """Forget all tokens."""

    @abstractmethod
    def place(self) -> Hashable:
        """Return the place at which the tokens end. Does not mutate."""

    @abstractmethod
    def children(self, place: Hashable, most: int) -> list[Child]:
        """Return at most `most` tokens that may follow a place, the likeliest first. Does not mutate."""

    def keep(self, count: int) -> None:
        """Keep only the first `count` tokens; rare, so they are simply read again."""
        if count < len(self.tokens):
            kept = self.tokens[:count]
            self.clear()
            self.extend(kept)
        del self.unread[count - len(self.tokens) :]

    def read(self, count: int) -> None:
        """Read the next `count` unread tokens."""
        self.extend(self.unread[:count])
        del self.unread[:count]


class LookupDrafter(ABC):
    """Implements `covey.contracts.ports.Drafter` over one `Lookup` for each tag."""

    def __init__(self, settings: DrafterSettings, *, name: str, vocab_size: int) -> None:
        self._ledger: Ledger[Lookup, DraftReply] = Ledger(self.open, self._close)
        whose = identity([type(self).__name__, settings])
        self._info = DrafterInfo(name, vocab_size, 1 << 30, self._ledger.epoch, 0, whose)

    @abstractmethod
    def opened(self, opening: Open) -> Lookup:
        """Return an empty lookup for a new tag."""

    @abstractmethod
    def closed(self, lookup: Lookup) -> None:
        """Handle the end of a tag's request; its text may serve others."""

    def info(self) -> DrafterInfo:
        return self._info

    def draft(self, work: DraftWork) -> DraftReply:
        return self._ledger.once(work, self._draft)

    def _draft(self, work: DraftWork) -> DraftReply:
        started = time.perf_counter()
        status, rows = self._update(work)
        depths = work.depth.tolist()
        for lookup, depth in zip(rows, depths):
            if lookup is not None and depth:  # else it only notes the tokens: a text that has ended is kept unread
                lookup.read(len(lookup.unread))
        caught_up = time.perf_counter()
        trees = _joined(
            [
                grow(lookup, depth, 1 if lookup.chains else width) if lookup is not None else ([], [], [])
                for lookup, depth, width in zip(rows, depths, work.width.tolist())
            ],
            work.q_rows,
        )
        return DraftReply(
            status=np.asarray(status, np.int32),
            seen=np.asarray([0 if lookup is None else lookup.num_tokens for lookup in rows], np.int32),
            trees=trees,
            epoch=self._info.epoch,
            catch_up_seconds=caught_up - started,
            draft_seconds=time.perf_counter() - caught_up,
        )

    def _update(self, work: DraftWork) -> tuple[list[int], list[Lookup | None]]:
        self._ledger.update(work)
        status: list[int] = []
        rows: list[Lookup | None] = []
        bounds, keeps = work.offsets.tolist(), work.keep.tolist()
        for row, tag in enumerate(work.tags.tolist()):
            state = self._ledger.find(work, tag, keeps[row])
            if state is None:
                status.append(RowStatus.STALE)
                rows.append(None)
                continue
            state.keep(keeps[row])
            state.unread += work.tokens[bounds[row] : bounds[row + 1]].tolist()
            status.append(RowStatus.OK)
            rows.append(state)
        return status, rows

    def open(self, opening: Open) -> Lookup:
        """Return a lookup for a new request, all of whose text is unread."""
        lookup = self.opened(opening)
        lookup.chains = opening.sampling.rule is Rule.REJECTION
        lookup.num_prompt = opening.num_prompt
        lookup.banned = frozenset(token for token, value in opening.sampling.logit_bias if value <= BAN)
        lookup.unread = opening.tokens.tolist()
        return lookup

    def _close(self, lookup: Lookup, ended: bool) -> None:
        if ended:
            self.closed(lookup)


def grow(lookup: Lookup, depth: int, width: int) -> tuple[list[int], list[int], list[float]]:
    """Return tokens, parents and log path shares of a beam of `width` over the lookup's children."""
    tokens: list[int] = []
    parents: list[int] = []
    scores: list[float] = []
    level: list[tuple[float, int, Hashable]] = [(0.0, -1, lookup.place())]
    for _ in range(depth):
        offered = [
            (score + math.log(child.share), node, child)
            for score, node, place in level
            for child in lookup.children(place, width)
            if child.token not in lookup.banned
        ]
        offered.sort(key=lambda item: -item[0])
        level = []
        for score, parent, child in offered[:width]:
            level.append((score, len(tokens), child.place))
            tokens.append(child.token)
            parents.append(parent)
            scores.append(score)
        if not level:
            break
    return tokens, parents, scores


def _joined(rows: list[tuple[list[int], list[int], list[float]]], q_rows: bool) -> Trees:
    offsets = np.cumsum([0, *(len(tokens) for tokens, _, _ in rows)]).astype(np.int32)
    tokens = np.asarray([token for tokens, _, _ in rows for token in tokens], np.int32)
    parents = np.asarray([parent for _, parents, _ in rows for parent in parents], np.int32)
    scores = np.asarray([score for _, _, scores in rows for score in scores], np.float32)
    if not q_rows:
        return Trees(offsets, tokens, parents, scores)
    q_ids = np.zeros((len(tokens), SPARSE), np.int32)
    q_probs = np.zeros((len(tokens), SPARSE), np.float32)
    q_ids[:, 0], q_probs[:, 0] = tokens, 1.0
    return Trees(offsets, tokens, parents, scores, q_ids, q_probs)
