"""Emulated devices: a target and drafters that are not there, at the speed of a cost table.

The language model is a hash: after any tokens its distribution is a single token, a function of all of them. So
temperature, truncation, bias and penalties change nothing, and it never ends a text by itself. A drafter knows the same
hash and agrees with it at set rates. They depend on the position in the draft and on the request's subject, which is
its tenant or the first token of its prompt. Or its guesses follow those recorded on a real pair (`guesses.py`), which
also makes trees. Work takes the time that the table gives. It is slept on the clock that is passed in, so sweeps run in
virtual time as well as through the real server.

Every result obtained with these is a simulation's and must say so. Both implement ports of `covey.contracts.ports`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from covey.contracts.ports import Clock
from covey.contracts.types import (
    LEAST_LOGPROB,
    NO_TOP,
    DrafterInfo,
    DraftReply,
    DraftWork,
    Ints,
    Open,
    Resized,
    ResizeStatus,
    RowStatus,
    TargetInfo,
    TargetReply,
    TargetWork,
    Top,
    Trees,
)
from covey.emulated.guesses import Guesser, Guesses
from covey.emulated.hash_model import HashModel
from covey.models.identity import identity
from covey.wire.batch import batched, parted
from covey.wire.ledger import Ledger
from covey_client.costs.surface import Surface
from covey_client.costs.table import CostTable

EPOCH = 1
NO_DIVERGENCE = -1.0  # the reward of a row without drafts


@dataclass(slots=True)
class _Text:
    """The tokens of one tag; `states[i]` is the hash of the first i."""

    tokens: list[int]
    states: list[int]
    tenant: str
    subject: str
    top: int  # the request's `top_logprobs`
    num_cached_tokens: int = 0

    @classmethod
    def of(cls, model: HashModel, opening: Open) -> _Text:
        subject, top = f"@{opening.tokens[0]}", opening.sampling.top_logprobs
        text = cls([], [0], opening.tenant, subject, top)
        text.append(model, opening.tokens.tolist())
        return text

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    def append(self, model: HashModel, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.states.append(model.state((token,), self.states[-1]))
            self.tokens.append(token)

    def cut(self, length: int) -> None:
        del self.tokens[length:], self.states[length + 1 :]
        self.num_cached_tokens = min(self.num_cached_tokens, length)


class EmulatedTarget:
    """Implements `covey.contracts.ports.Target`. Owns texts and counts blocks. There is no prefix cache."""

    def __init__(
        self,
        costs: CostTable,
        model: HashModel,
        clock: Clock,
        *,
        blocks: int,
        block_size: int = 16,
        max_positions: int = 1 << 20,
        folder: str = "",
        block_bytes: int = 0,
    ) -> None:
        """Emulate a device. With `block_bytes` its pool can grow without limit, because memory is only counted."""
        self._verify = Surface(costs.verify)
        self._model, self._clock = model, clock
        self._used = 0  # blocks in use during a pass: summed once, because every row would sum over all texts
        self._ledger: Ledger[_Text, TargetReply] = Ledger(
            partial(_Text.of, model), _nothing_to_release, exclusive=True, epoch=EPOCH, now=clock.now
        )
        self._info = TargetInfo(
            model=f"emulated {costs.name}",
            vocab_size=model.vocab_size,
            max_positions=max_positions,
            block_size=block_size,
            total_blocks=blocks,
            end_ids=(),
            numerics="invariant",
            dtype="none",
            device="emulated",
            epoch=EPOCH,
            folder=folder,
            identity=identity(costs),
            block_bytes=block_bytes,
            least_blocks=blocks,
        )
        self._total = blocks

    def info(self) -> TargetInfo:
        return replace(self._info, total_blocks=self._total)

    @property
    def used(self) -> int:
        """Return the number of blocks in use."""
        return sum(self._blocks(text.num_cached_tokens) for text in self._ledger.states())

    def step(self, work: TargetWork) -> TargetReply:
        return self._ledger.once(work, self._step)

    def resize(self, blocks: int) -> Resized:
        if not self._info.block_bytes or blocks < self._info.least_blocks:
            return Resized(ResizeStatus.NOT_HERE, self._total)
        if self.used > blocks:
            return Resized(ResizeStatus.IN_USE, self._total)
        self._total = blocks
        return Resized(ResizeStatus.OK, blocks)

    def _step(self, work: TargetWork) -> TargetReply:
        started = self._clock.now()
        self._ledger.update(work)
        self._used = self.used
        rows = [self._row(work, row) for row in range(len(work.tags))]
        passed = [row for row in rows if row.computed]
        seconds = self._verify(len(passed), sum(row.computed for row in passed)) if passed else 0.0
        _pass_time(self._clock, started, seconds)
        return self._reply(work, rows, seconds)

    def _row(self, work: TargetWork, row: int) -> _Done:
        base = int(work.base[row])
        text = self._ledger.find(work, int(work.tags[row]), base)
        if text is None or text.num_tokens != base:
            return _Done(RowStatus.STALE)
        start, end = int(work.trees.offsets[row]), int(work.trees.offsets[row + 1])
        chunk = min(int(work.chunk[row]), len(text.tokens) - text.num_cached_tokens)
        last = text.num_cached_tokens + chunk == len(text.tokens)
        held = self._used - self._blocks(text.num_cached_tokens)
        if held + self._blocks(text.num_cached_tokens + chunk) > self._total:
            return _Done(RowStatus.NO_BLOCKS)
        nodes = end - start if last else 0
        if held + self._blocks(text.num_cached_tokens + chunk + nodes) > self._total:
            start, nodes = end, 0  # a tree that does not fit is left out
        text.num_cached_tokens += chunk
        self._used = held + self._blocks(text.num_cached_tokens)
        if not last:
            return _Done(RowStatus.OK, chunk)
        tree = work.trees.tokens[start:end].tolist(), work.trees.parents[start:end].tolist()
        alike = self._alike(text, *tree) if work.divergence and nodes else NO_DIVERGENCE
        new = self._walk(text, *tree)
        text.append(self._model, new)
        text.num_cached_tokens = len(text.tokens) - 1
        self._used = held + self._blocks(text.num_cached_tokens)
        return _Done(RowStatus.OK, chunk + nodes, tuple(new), alike)

    def _walk(self, text: _Text, tokens: list[int], parents: list[int]) -> list[int]:
        """Return the new tokens by the coupled rule (`covey.trees.verify.walk`). For a distribution of one token, the
        rejection rule gives the same."""
        state = text.states[-1]
        new = [self._model.next(state)]
        node = -1
        while True:
            child = next((i for i, token in enumerate(tokens) if parents[i] == node and token == new[-1]), None)
            if child is None:
                return new
            node, state = child, self._model.state((new[-1],), state)
            new.append(self._model.next(state))

    def _alike(self, text: _Text, tokens: list[int], parents: list[int]) -> float:
        """Return the block divergence reward for distributions of one token each. It is the share of drafted positions
        that are right after the draft's own tokens."""
        states: list[int] = []
        right = 0
        for token, parent in zip(tokens, parents):
            state = states[parent] if parent >= 0 else text.states[-1]
            right += token == self._model.next(state)
            states.append(self._model.state((token,), state))
        return right / len(tokens)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._info.block_size)

    def _reply(self, work: TargetWork, rows: list[_Done], seconds: float) -> TargetReply:
        texts = [self._ledger.get(work, tag) for tag in work.tags.tolist()]
        new = [token for row in rows for token in row.new]
        tops = [text.top if text else 0 for text, row in zip(texts, rows) for _ in row.new]
        return TargetReply(
            status=np.array([row.status for row in rows], np.int32),
            num_cached_tokens=np.array([text.num_cached_tokens if text else 0 for text in texts], np.int32),
            reused=np.zeros(len(rows), np.int32),
            accepted=np.array([max(0, len(row.new) - 1) for row in rows], np.int32),
            offsets=_offsets([len(row.new) for row in rows]),
            tokens=np.array(new, np.int32),
            logprobs=np.zeros(len(new), np.float32),
            free_blocks=self._total - self.used,
            total_blocks=self._total,
            epoch=EPOCH,
            seconds=seconds,
            divergence=np.array([row.alike for row in rows] if work.divergence else [], np.float32),
            top=_top(new, tops) if any(tops) else NO_TOP,
        )


def _top(tokens: list[int], counts: list[int]) -> Top:
    """Return the likeliest tokens of distributions of one token each: that token, then the lowest other ids."""
    width = max(counts)
    ids, logprobs = np.full((len(tokens), width), -1, np.int32), np.zeros((len(tokens), width), np.float32)
    for place, (token, count) in enumerate(zip(tokens, counts)):
        ids[place, :count] = [token, *(other for other in range(count) if other != token)][:count]
        logprobs[place, 1:count] = LEAST_LOGPROB
    return Top(ids, logprobs)


@dataclass(frozen=True, slots=True)
class _Done:
    """The result of a pass for one row."""

    status: RowStatus
    computed: int = 0  # tokens
    new: tuple[int, ...] = ()
    alike: float = NO_DIVERGENCE  # the block divergence reward of its drafts


class EmulatedDrafter:
    """Implements `covey.contracts.ports.Drafter`. Without recorded `guesses` it proposes chains at any width,
    because a hash has no second choice. A step over a tree costs the same as a step over one row per lane.

    Catch-up costs as much as one prefill of all missed tokens: C_switch at the number of rows that lag and their mean
    lag. Nightjar's paper looks up the whole batch and its longest lag instead.
    """

    def __init__(
        self,
        costs: CostTable,
        model: HashModel,
        clock: Clock,
        *,
        name: str,
        rates: Mapping[str, Sequence[float]],
        max_positions: int = 1 << 20,
        resident_bytes: int = 0,
        guesses: Guesses | None = None,
    ) -> None:
        """`rates` maps a subject to probabilities, by position, that a draft is right if those before it were. The last
        one serves all deeper positions. A subject is "@" and the first token of a prompt, else a tenant, else "".
        `guesses`, with the same subjects, replace the rates."""
        self._step = Surface(costs.draft[name])
        self._switch = Surface(costs.switch[name]) if name in costs.switch else None
        self._model, self._clock = model, clock
        self._rates = {tenant: tuple(listed) for tenant, listed in rates.items()}
        self._rates.setdefault("", (0.0,))
        self._salt = model.state(list(name.encode()))
        self._guesses = guesses
        self._guesser = None if guesses is None else Guesser(guesses, model, self._salt)
        self._ledger: Ledger[_Text, DraftReply] = Ledger(
            partial(_Text.of, model), _nothing_to_release, epoch=EPOCH, now=clock.now
        )
        self._info = DrafterInfo(name, model.vocab_size, max_positions, EPOCH, resident_bytes, identity(costs))

    def info(self) -> DrafterInfo:
        return self._info

    def draft(self, work: DraftWork) -> DraftReply:
        return self._ledger.once(work, self._draft)

    def draft_together(self, works: Sequence[DraftWork]) -> list[DraftReply]:
        return self._ledger.together(list(works), self._draft_together)

    def _draft_together(self, works: list[DraftWork]) -> list[DraftReply]:
        return [self._draft(works[0])] if len(works) == 1 else parted(self._draft(batched(works), works), works)

    def _draft(self, work: DraftWork, works: Sequence[DraftWork] = ()) -> DraftReply:
        """Draft for `work`. If it joins several messages, `works` are those messages."""
        started = self._clock.now()
        rows = []
        for each in works or (work,):
            self._ledger.update(each)
            rows += [self._text(each, row) for row in range(len(each.tags))]
        lags = self._catch_up(rows)
        catch_up = self._switch(sum(lags) / len(lags), len(lags)) if self._switch is not None and lags else 0.0
        trees = self._chains(rows, work.depth) if self._guesser is None else self._trees(self._guesser, rows, work)
        seconds = self._seconds(work)
        _pass_time(self._clock, started, catch_up + seconds)
        return DraftReply(
            status=np.array([RowStatus.STALE if text is None else RowStatus.OK for text in rows], np.int32),
            seen=np.array([0 if text is None else text.num_tokens for text in rows], np.int32),
            trees=trees,
            epoch=EPOCH,
            catch_up_seconds=catch_up,
            draft_seconds=seconds,
        )

    def _seconds(self, work: DraftWork) -> float:
        """Return the time of drafting. The first step of a tree has only one lane per row."""
        depth = int(work.depth.max(initial=0))
        if not depth:
            return 0.0
        rows, lanes = len(work.tags), int(np.where(work.depth > 0, work.width, 1).sum())
        if self._guesser is None or lanes == rows:
            return self._step(rows, depth)
        return self._step(rows, 1) + self._step(lanes, depth) - self._step(lanes, 1)

    def _chains(self, rows: list[_Text | None], depths: Ints) -> Trees:
        chains = [
            [] if text is None else self._chain(text, text.states[-1], depth)
            for text, depth in zip(rows, depths.tolist())
        ]
        sizes = [len(chain) for chain in chains]
        parents = [position - 1 for size in sizes for position in range(size)]
        return Trees(
            _offsets(sizes),
            np.array([token for chain in chains for token in chain], np.int32),
            np.array(parents, np.int32),
            np.array([-0.5 * (parent + 2) for parent in parents], np.float32),
        )

    def _trees(self, guesser: Guesser, rows: list[_Text | None], work: DraftWork) -> Trees:
        known = np.array([text is not None for text in rows], np.bool_)
        states = np.array([0 if text is None else text.states[-1] for text in rows], np.uint64)
        subjects = np.array([0 if text is None else self._subject(text) for text in rows], np.int64)
        return guesser.trees(states, subjects, np.where(known, work.depth, 0), work.width)

    def _subject(self, text: _Text) -> int:
        return 0 if self._guesses is None else self._guesses.subject(text.subject, text.tenant)

    def _catch_up(self, rows: list[_Text | None]) -> list[int]:
        """Return the lags that cost catch-up. The first step reads the tokens of the last round at no extra cost."""
        lags = []
        for text in rows:
            if text is not None:
                if not text.num_cached_tokens or text.num_tokens - text.num_cached_tokens > ALONG:
                    lags.append(text.num_tokens - text.num_cached_tokens)
                text.num_cached_tokens = text.num_tokens
        return [lag for lag in lags if lag]

    def _text(self, work: DraftWork, row: int) -> _Text | None:
        """Return a row's text, brought up to date, or None if the row is stale."""
        keep = int(work.keep[row])
        text = self._ledger.find(work, int(work.tags[row]), keep)
        if text is not None:
            text.cut(keep)
            text.append(self._model, work.tokens[work.offsets[row] : work.offsets[row + 1]].tolist())
        return text

    def _chain(self, text: _Text, state: int, depth: int) -> list[int]:
        """Return the chain that the drafter proposes at this state."""
        rates = self._rates.get(text.subject) or self._rates.get(text.tenant, self._rates[""])
        chain: list[int] = []
        for position in range(depth):
            token = self._model.next(state)
            if self._model.luck(state, self._salt) >= rates[min(position, len(rates) - 1)]:
                token = self._model.low + (token + 1 - self._model.low) % (self._model.vocab_size - self._model.low)
            chain.append(token)
            state = self._model.state((token,), state)
        return chain


def _nothing_to_release(_text: _Text, _ended: bool) -> None:
    """Do nothing: a text holds no other resource."""


ALONG = 16  # tokens of a row that a drafter's first step reads at no extra cost


def _pass_time(clock: Clock, started: float, seconds: float) -> None:
    """Sleep until `seconds` after `started`, so that the emulation's own time is part of them."""
    clock.sleep(max(0.0, started + seconds - clock.now()))


def _offsets(sizes: Sequence[int]) -> Ints:
    if not len(sizes):
        return np.zeros(1, np.int32)
    offsets: Ints = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    return offsets
