"""Who runs: admission, priorities, chunked prefill, preemption. Owns every request's progress.

    waiting --admit--> running --finish--> gone
       ^------preempt-----'

Knows no tensors, no Triton and no drafters; the target owns the blocks, this counts them.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from covey.errors import Overloaded
from covey.types import NO_FLOATS, NO_INTS, Finish, Floats, Ints, Open, Progress, Request


@dataclass(slots=True)
class Heard:
    """What a drafter said of a request's text after it has read it: see `covey.types.Judged`."""

    read: int = 0  # tokens
    start: int = 0  # position of the first hit
    hits: list[int] = field(default_factory=list)
    prompt_log_q: float = 0.0
    prompt_tokens: int = 0

    @property
    def end(self) -> int:
        """The position behind the last hit."""
        return self.start + len(self.hits)

    def add(self, read: int, first: int, hits: list[int], prompt_log_q: float, prompt_tokens: int) -> None:
        """What follows a place that was left out stands alone: hits tell of rounds only where they are one string."""
        self.read = read
        if hits and first != self.end:
            self.start, self.hits = first, []
        self.hits += hits
        self.prompt_log_q += prompt_log_q
        self.prompt_tokens += prompt_tokens


@dataclass(slots=True, eq=False)
class ActiveRequest:
    """A request and how far it got. Changed by the scheduler and, while a round is in flight, by the engine alone."""

    request: Request
    output: list[int] = field(default_factory=list)
    num_cached_tokens: int = 0  # tokens with KV on the target
    opened: bool = False  # the target knows the tag
    open_sent: bool = False  # an opening was sent: the target may hold the tag, whatever became of the pass
    reused: int = 0
    rounds: int = 0  # verify rounds
    drafted: int = 0
    accepted: int = 0
    acceptance: list[int] = field(default_factory=list)  # place j: drafts of which j tokens were accepted
    seen: dict[str, int] = field(default_factory=dict)  # drafter -> tokens of this request that it was told
    heard: dict[str, Heard] = field(default_factory=dict)  # what drafters that read it said of its text
    belief: Any = None  # what a planner has learnt of it; nobody else looks

    @property
    def key(self) -> int:
        return self.request.key

    @property
    def known(self) -> int:
        """Tokens so far, prompt included."""
        return len(self.request.prompt) + len(self.output)

    @property
    def room(self) -> int:
        """Tokens that it may still emit."""
        return self.request.max_tokens - len(self.output)

    @property
    def decoding(self) -> bool:
        """Whether the next pass computes its last known token and so yields a new one."""
        return self.opened and self.known - self.num_cached_tokens == 1

    def judged(self, drafted: int, accepted: int) -> None:
        """Count one draft that was verified."""
        self.drafted += drafted
        self.accepted += accepted
        self.acceptance += [0] * (accepted + 1 - len(self.acceptance))
        self.acceptance[accepted] += 1

    def tokens(self, start: int = 0) -> Ints:
        """Its tokens from `start` on."""
        prompt = self.request.prompt
        if start >= len(prompt):
            return np.asarray(self.output[start - len(prompt) :], np.int32)
        return np.concatenate([prompt[start:], np.asarray(self.output, np.int32)])

    def progress(
        self, tokens: Ints, logprobs: Floats, finish: Finish | None = None, error: Exception | None = None
    ) -> Progress:
        """What its listener is told of new tokens."""
        return Progress(
            self.key,
            tokens,
            logprobs,
            finish,
            error,
            drafted=self.drafted,
            accepted=self.accepted,
            reused=self.reused,
            rounds=self.rounds,
            acceptance=tuple(self.acceptance),
        )

    def last_word(self, finish: Finish, error: Exception | None = None) -> Progress:
        """Tells its listener that it has ended with what was told before."""
        return self.progress(NO_INTS, NO_FLOATS, finish, error)

    def opening(self) -> Open:
        """What a target or drafter must be told that does not know the tag."""
        request = self.request
        return Open(self.key, self.tokens(), request.num_prompt, request.sampling, request.tenant, self.rounds)


@dataclass(frozen=True, slots=True)
class Batch:
    """One round's rows and how many known tokens each may compute; decoding rows come first."""

    rows: list[ActiveRequest]
    chunk: Ints
    opens: tuple[Open, ...]
    frees: tuple[int, ...]
    decoding: int  # how many rows will yield a token without a prefill


class Scheduler:
    """Owns the waiting queue and the running set."""

    def __init__(
        self, *, max_running: int, max_waiting: int, token_budget: int, growth_tokens: int, block_size: int
    ) -> None:
        self.max_running = min(max_running, token_budget)
        self.max_waiting = max_waiting
        self.token_budget = token_budget
        self.growth_tokens = growth_tokens
        self.block_size = block_size
        self.waiting: list[ActiveRequest] = []
        self.running: dict[int, ActiveRequest] = {}
        self._frees: list[int] = []
        self.preemptions = 0

    def submit(self, request: Request) -> None:
        """Queue a request; raises Overloaded when the queue is full."""
        if len(self.waiting) >= self.max_waiting:
            raise Overloaded(f"queue full: {self.max_waiting} requests are waiting; try again later")
        bisect.insort(self.waiting, ActiveRequest(request), key=_urgency)

    def find(self, key: int) -> ActiveRequest | None:
        """The request by its key, running or waiting. Does not mutate."""
        return self.running.get(key) or next((active for active in self.waiting if active.key == key), None)

    def finish(self, active: ActiveRequest) -> None:
        """Forget a request; the target is told with the next pass."""
        if self.running.pop(active.key, None) is None:
            self.waiting.remove(active)
        self._close(active)

    def preempt(self, active: ActiveRequest) -> None:
        """Back to the queue; its tokens are kept and computed again later."""
        del self.running[active.key]
        self._close(active)
        active.num_cached_tokens = 0
        self.preemptions += 1
        bisect.insort(self.waiting, active, key=_urgency)

    def least_urgent(self) -> ActiveRequest:
        """The running request to preempt first. Does not mutate."""
        return max(self.running.values(), key=_urgency)

    def reopen(self, active: ActiveRequest) -> None:
        """The target lost the tag: tell it everything again with the next pass."""
        active.opened = False
        active.num_cached_tokens = 0

    @property
    def freeing(self) -> bool:
        """Whether the next pass frees tags."""
        return bool(self._frees)

    @property
    def idle(self) -> bool:
        return not self.running and not self.waiting and not self._frees

    def plan(self, free_blocks: int) -> Batch:
        """Admit what fits and lay out the next pass: decoding rows first, prefill chunks in what budget is left."""
        self._admit(free_blocks)
        rows = [active for active in self.running.values() if active.decoding]
        decoding = len(rows)
        chunk = [1] * decoding
        budget = self.token_budget - decoding
        opens = []
        for active in self.running.values():
            if budget <= 0:
                break
            if active.decoding:
                continue
            size = min(budget, active.known - active.num_cached_tokens)
            budget -= size
            rows.append(active)
            chunk.append(size)
            if not active.opened:
                opens.append(active.opening())
                active.open_sent = True
        frees, self._frees = tuple(self._frees), []
        return Batch(rows, np.asarray(chunk, np.int32), tuple(opens), frees, decoding)

    def unsent(self, batch: Batch) -> None:
        """A planned pass did not happen: what it would have freed is still to be freed."""
        self._frees.extend(batch.frees)

    def drop(self, frees: tuple[int, ...]) -> None:
        """Tags that the target will not be told to free after all."""
        self._frees = [tag for tag in self._frees if tag not in frees]

    def _admit(self, free_blocks: int) -> None:
        if not self.waiting:
            return
        spare = free_blocks - sum(self._blocks(active) - self._held(active) for active in self.running.values())
        while self.waiting and len(self.running) < self.max_running:
            active = self.waiting[0]
            needed = self._blocks(active)
            if needed > spare and self.running:
                break
            spare -= needed
            self.running[active.key] = self.waiting.pop(0)

    def _blocks(self, active: ActiveRequest) -> int:
        """Blocks for its tokens and a share of its growth."""
        return -(-(active.known + min(active.room, self.growth_tokens)) // self.block_size)

    def _held(self, active: ActiveRequest) -> int:
        return -(-active.num_cached_tokens // self.block_size)

    def _close(self, active: ActiveRequest) -> None:
        if active.open_sent:
            self._frees.append(active.key)
            active.opened = active.open_sent = False


def _urgency(active: ActiveRequest) -> tuple[int, float, int]:
    """Sorts the most urgent first."""
    return (-active.request.priority, active.request.arrival, active.key)


def crop(active: ActiveRequest, tokens: list[int]) -> tuple[list[int], Finish | None]:
    """What of newly committed tokens a request keeps, and whether it ends with them: an end token is kept as the
    last, everything past the request's room is dropped."""
    room, ends = active.room, active.request.sampling.end_ids
    kept = tokens[:room]
    if ends:
        for index, token in enumerate(kept):
            if token in ends:
                return kept[: index + 1], Finish.EOS
    return kept, Finish.LENGTH if len(kept) == room else None
