"""The values that travel between engine, planner, scheduler and ports.

Everything here is frozen or a plain array; nothing here knows torch or Triton. Ragged values are packed: row r of a
batch owns `values[offsets[r]:offsets[r + 1]]`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint16]  # bits of bfloat16

SPARSE = 16  # tokens of a sparse q row
GREEDY_BELOW = 1e-5  # temperature
LEAST_LOGPROB = -9999.0  # of a token that cannot be: answers in JSON know no infinity

NO_INTS: Ints = np.zeros(0, np.int32)
NO_FLOATS: Floats = np.zeros(0, np.float32)
NO_STATES: Words = np.zeros((0, 0), np.uint16)


class Rule(str, Enum):
    """The rule by which drafts are verified; see `covey.trees.verify`."""

    COUPLED = "coupled"
    REJECTION = "rejection"


class RowStatus(IntEnum):
    """The status of one row of a message."""

    OK = 0
    NO_BLOCKS = 1  # the pool is exhausted: nothing of this row was done
    STALE = 2  # the tag is unknown here: open it again with all its tokens
    SKIPPED = 3  # a drafter had no budget or no time for this row; nothing was proposed
    FAULT = 4  # the model's logits allow no token: not finite, or all masked


class Finish(str, Enum):
    """Why a request ended."""

    EOS = "eos"
    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Sampling:
    """The settings by which tokens are drawn. Temperature 0 is greedy (see `greedy`). Penalties are those of Hugging
    Face (repetition, over prompt and output) and of OpenAI (presence and frequency, over output alone)."""

    temperature: float = 0.0
    top_k: int = 0  # 0: no limit
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 0  # no end token before so many tokens of output
    end_ids: tuple[int, ...] = ()  # tokens that end a request
    bad_words: tuple[tuple[int, ...], ...] = ()  # token sequences never completed
    logit_bias: tuple[tuple[int, float], ...] = ()  # tokens, each once, and what is added to their logits
    seed: int = 0  # unsigned, 64 bits
    logprobs: bool = False
    top_logprobs: int = 0  # of so many of the likeliest tokens at each place
    prompt_logprobs: bool = False  # of the prompt's tokens as well
    rule: Rule = Rule.COUPLED
    grammar: str = ""  # which the output has to fit, as llguidance writes it (`covey.text.grammar`)

    @property
    def greedy(self) -> bool:
        """Return whether the temperature is so low that only tokens as likely as the best could be drawn. Among equals
        the lowest id wins."""
        return self.temperature < GREEDY_BELOW

    @property
    def has_penalties(self) -> bool:
        """Return whether a draw depends on more than its logits: on the tokens before it."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or self.min_tokens > 0
            or bool(self.bad_words)
        )


LOOKUP = "lookup"  # the drafter's name of drafts that are offered (`covey.contracts.ports.Companion`)


@dataclass(frozen=True, slots=True)
class Offer:
    """A chain of drafts for a text of so many tokens, and how many of its first 1, 2, ... are expected to be
    accepted."""

    behind: int
    tokens: list[int]
    accepted: list[float]


@dataclass(frozen=True, slots=True)
class Open:
    """A tag's first appearance on a target or drafter: all its tokens so far and how to draw from them."""

    tag: int
    tokens: Ints  # prompt, then whatever was generated before (a replay after preemption or restart)
    num_prompt: int  # how many of `tokens` are the prompt; penalties and min_tokens need it
    sampling: Sampling
    tenant: str = ""  # salts the prefix hashes: tenants never share blocks
    rounds: int = 0  # verify rounds this request has had; keys the rejection rule's random streams
    name: str = ""  # of its request in logs


@dataclass(frozen=True, slots=True)
class Trees:
    """One candidate tree per row, packed. `parents` index within the row's own tree, -1 being the root (the row's
    last committed token, not a node); a parent comes before its children. `scores` are log path probabilities
    under the drafter: of its shares of the race, which is what says most. `log_q`, where a drafter ships it, is the
    same of its probabilities, noise apart; under greedy settings they are one. `q_ids` and `q_probs` (node by K) are
    the sparse distribution each node was proposed from.

    For example, row 0 drafts 11 then 12, row 1 nothing, and row 2 either 21 alone or 22 then 23:

        offsets  0 2 2 5            row 2 owns nodes 2, 3 and 4
        tokens   11 12   21 22 23
        parents  -1  0   -1 -1  1   23 follows 22, which is node 1 of its own tree
    """

    offsets: Ints
    tokens: Ints
    parents: Ints
    scores: Floats = field(default_factory=lambda: NO_FLOATS)
    q_ids: Ints | None = None
    q_probs: Floats | None = None
    log_q: Floats = field(default_factory=lambda: NO_FLOATS)

    @classmethod
    def empty(cls, rows: int) -> Trees:
        return cls(np.zeros(rows + 1, np.int32), NO_INTS, NO_INTS)

    @property
    def rows(self) -> int:
        return len(self.offsets) - 1

    def only(self, rows: npt.NDArray[np.bool_]) -> Trees:
        """Return the same rows, the trees of those not in the mask emptied."""
        return self.nodes(np.repeat(rows, self.sizes))

    def nodes(self, mask: npt.NDArray[np.bool_]) -> Trees:
        """Return the same rows with these nodes alone, their parents counted anew. Kept nodes' parents must be kept."""
        kept = mask.nonzero()[0]
        offsets = kept.searchsorted(self.offsets).astype(np.int32)  # kept nodes before each row
        place = np.zeros(len(mask) + 1, np.int32)
        place[kept] = np.arange(len(kept), dtype=np.int32)
        sizes, parents = offsets[1:] - offsets[:-1], self.parents.take(kept)
        above = place[parents + self.offsets[:-1].repeat(sizes)] - offsets[:-1].repeat(sizes)
        above[parents < 0] = -1
        return Trees(
            offsets,
            self.tokens.take(kept),
            above,
            self.scores.take(kept) if len(self.scores) else self.scores,
            None if self.q_ids is None else self.q_ids[kept],
            None if self.q_probs is None else self.q_probs[kept],
            self.log_q[kept] if len(self.log_q) else self.log_q,
        )

    def part(self, start: int, end: int) -> Trees:
        """Return the trees of rows `start` to `end`."""
        first, last = self.offsets[start], self.offsets[end]
        return Trees(
            self.offsets[start : end + 1] - first,
            self.tokens[first:last],
            self.parents[first:last],
            self.scores[first:last] if len(self.scores) else self.scores,
            None if self.q_ids is None else self.q_ids[first:last],
            None if self.q_probs is None else self.q_probs[first:last],
            self.log_q[first:last] if len(self.log_q) else self.log_q,
        )

    @property
    def sizes(self) -> Ints:
        return self.offsets[1:] - self.offsets[:-1]


@dataclass(frozen=True, slots=True)
class TargetWork:
    """One pass over the target. Row r belongs to `tags[r]`; it computes at most `chunk[r]` known tokens that have no
    KV yet and, where that reaches the last known token, verifies its tree and commits at least one new token."""

    tags: Ints
    base: Ints  # known tokens (prompt and committed) as the sender sees it: a mismatch answers STALE
    chunk: Ints
    trees: Trees
    opens: tuple[Open, ...] = ()
    frees: tuple[int, ...] = ()
    sequence: int = 0  # a replay of the last sequence number gets the stored answer; 0: never sent again
    epoch: int = 0  # the incarnation of the target that the sender knows; 0 before the first answer
    room: Ints = field(default_factory=lambda: NO_INTS)  # per row: tokens its request may still emit; empty: not said
    origin: int = 0  # who sends, and which incarnation of it (`covey.wire.ledger`)
    divergence: bool = False  # say how alike target and drafter are, from the trees' q rows
    states_from: Ints = field(default_factory=lambda: NO_INTS)  # per row: the first position, -1: no states are wanted


@dataclass(frozen=True, slots=True, eq=False)
class Top:
    """The likeliest tokens at each of some places, the likeliest first, and their log-probabilities, as [places, k].
    Where a request asked for fewer, or for none, -1 and 0 follow."""

    ids: Ints
    logprobs: Floats

    @classmethod
    def none(cls, places: int) -> Top:
        return cls(np.zeros((places, 0), np.int32), np.zeros((places, 0), np.float32))

    @classmethod
    def joined(cls, parts: Sequence[Top]) -> Top:
        """Return the places of all parts, one part's behind the other's."""
        width = max(part.width for part in parts)
        if all(part.width == width for part in parts):
            return cls(np.concatenate([part.ids for part in parts]), np.concatenate([part.logprobs for part in parts]))
        missing = [((0, 0), (0, width - part.width)) for part in parts]
        ids = [np.pad(part.ids, room, constant_values=-1) for part, room in zip(parts, missing)]
        return cls(np.concatenate(ids), np.concatenate([np.pad(p.logprobs, room) for p, room in zip(parts, missing)]))

    @property
    def width(self) -> int:
        return int(self.ids.shape[1])

    def at(self, places: Any, width: int | None = None) -> Top:
        """Return the likeliest tokens of the given places, `width` of each."""
        return Top(self.ids[places, :width], self.logprobs[places, :width])


NO_TOP = Top.none(0)


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Has the log-probabilities of some tokens of a prompt, and the likeliest tokens at their places."""

    logprobs: Floats
    top: Top = NO_TOP  # without places where no request wants it

    @classmethod
    def joined(cls, parts: Sequence[Scores]) -> Scores:
        return cls(np.concatenate([part.logprobs for part in parts]), Top.joined([part.top for part in parts]))

    def at(self, places: Any, width: int | None = None) -> Scores:
        """Return those of the given places, with so many of the likeliest at each."""
        return Scores(self.logprobs[places], self.top.at(places, width) if self.top.width else self.top)


NO_SCORES = Scores(NO_FLOATS)


@dataclass(frozen=True, slots=True)
class TargetReply:
    """The tokens that one pass committed: `tokens[offsets[r]:offsets[r + 1]]` for row r, of which the first
    `accepted[r]` were drafted. `num_cached_tokens[r]` is how many tokens of the row have KV now, and `reused[r]` how
    many of those came from a prefix hit. `divergence[r]`, where that was asked for, is the mean over drafted positions
    of 1 - TV(p, q) at temperature 1, or a lower bound of it (`covey.target.divergence`); -1: nothing with q rows was
    verified."""

    status: Ints
    num_cached_tokens: Ints
    reused: Ints
    accepted: Ints
    offsets: Ints
    tokens: Ints
    logprobs: Floats  # aligned with tokens; log-probabilities of the model itself, before penalties and temperature
    free_blocks: int
    total_blocks: int
    epoch: int
    seconds: float  # inside the pass, on the target's side
    divergence: Floats = field(default_factory=lambda: NO_FLOATS)  # empty: not asked for
    top: Top = NO_TOP  # aligned with tokens, where any row asked for it; else without places
    # Row r has `scores` of its prompt's tokens from `scored[r]` to `scored[r + 1]`, the last of them that of the last
    # token that its KV predicts, or the prompt's last; `scored` is empty where no row asked for any.
    scored: Ints = field(default_factory=lambda: NO_INTS)
    scores: Scores = NO_SCORES
    # Row r has `states[state_offsets[r]:state_offsets[r + 1]]`, one of each position with KV from `states_from[r]` on:
    # what a head reads (`covey.models.heads`). Empty where no row asked for any.
    state_offsets: Ints = field(default_factory=lambda: NO_INTS)
    states: Words = field(default_factory=lambda: NO_STATES)


class ResizeStatus(IntEnum):
    """The outcome of the wish for a KV pool of another size."""

    OK = 0
    NOT_HERE = 1  # this model's pool keeps the size that it was loaded with, or cannot become so large or small
    LATER = 2  # memory is on its way to the pool, or from it to the system: ask again
    IN_USE = 3  # more blocks are in use than there would be
    NO_MEMORY = 4  # the device has none


@dataclass(frozen=True, slots=True)
class Resized:
    """The answer to such a wish."""

    status: ResizeStatus
    total_blocks: int  # in the pool now


class Hit(IntEnum):
    """A drafter's own draw at a place where text stands, with the request's noise."""

    MISS = 0
    HIT = 1  # the token that stands there
    NOTHING = 2  # it had nothing to offer there


@dataclass(frozen=True, slots=True)
class JudgeWork:
    """The instructions of a call that reads: compute at most `budget` tokens' keys over all rows, those of the first
    rows first, and judge what is read on the way, in row r from position `judge_from[r]` of its text on; -1 means
    nothing. What the rejection rule drew is not judged."""

    judge_from: Ints
    budget: int


class RowJudged(NamedTuple):
    """The judgement of one row of `Judged`; the defaults are those of a row that is not known."""

    read: int = 0
    first: int = 0
    hits: Sequence[int] = ()
    prompt_log_q: float = 0.0
    prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Judged:
    """A drafter's judgement of text that it has read. Row r: `hits[offsets[r]:offsets[r + 1]]` (`Hit`) of its positions
    from `first[r]` on, all of them generated. Its prompt was not drawn: of that it says the sum of log q (temperature
    1) over the last tokens that it has judged, and how many these were."""

    read: Ints  # per row: tokens from the text's beginning on that it has read, or left out for ever
    first: Ints
    offsets: Ints
    hits: Ints
    prompt_log_q: Floats
    prompt_tokens: Ints

    @classmethod
    def of(cls, rows: Sequence[RowJudged]) -> Judged:
        return cls(
            read=np.asarray([row.read for row in rows], np.int32),
            first=np.asarray([row.first for row in rows], np.int32),
            offsets=np.cumsum([0, *(len(row.hits) for row in rows)]).astype(np.int32),
            hits=np.asarray([hit for row in rows for hit in row.hits], np.int32),
            prompt_log_q=np.asarray([row.prompt_log_q for row in rows], np.float32),
            prompt_tokens=np.asarray([row.prompt_tokens for row in rows], np.int32),
        )


@dataclass(frozen=True, slots=True)
class DraftWork:
    """The message of one call to a drafter: bring each tag up to its request's tokens, then propose. Row r keeps the
    first `keep[r]` tokens of what the drafter has seen of the tag and appends `tokens[offsets[r]:offsets[r + 1]]`."""

    tags: Ints
    keep: Ints
    offsets: Ints
    tokens: Ints
    depth: Ints  # per row; 0 only catches up
    width: Ints
    rounds: Ints  # per row: verify rounds so far (rejection rule's streams)
    q_rows: bool = False  # ship the sparse distributions the nodes were proposed from
    opens: tuple[Open, ...] = ()  # Open.tokens are appended to an empty history; the row's own tokens follow
    frees: tuple[int, ...] = ()
    sequence: int = 0
    epoch: int = 0
    origin: int = 0
    judging: JudgeWork | None = None  # a call that reads proposes nothing: every depth is 0
    patience: float = 0.0  # seconds in which the answer is of use; 0: not said
    log_q: bool = False  # ship `Trees.log_q`
    # To a head: the target's states at the positions before the tokens that are told, so one for each of them but a
    # text's first. Row r has `states[state_offsets[r]:state_offsets[r + 1]]`.
    state_offsets: Ints = field(default_factory=lambda: NO_INTS)
    states: Words = field(default_factory=lambda: NO_STATES)


@dataclass(frozen=True, slots=True)
class DraftReply:
    """Proposals, row by row; a row that is not OK proposed nothing. `seen[r]` is how many tokens the drafter was told,
    whether or not it has computed their keys."""

    status: Ints
    seen: Ints
    trees: Trees
    epoch: int
    catch_up_seconds: float
    draft_seconds: float
    judged: Judged | None = None  # answers a call that reads
    wait_seconds: float = 0.0  # before the drafter came to it
    again_seconds: float = 0.0  # the drafter cannot be reached now: ask again in so long. Not in messages


@dataclass(frozen=True, slots=True)
class TargetInfo:
    """The facts that an orchestrator must know about its target before the first request."""

    model: str
    vocab_size: int
    max_positions: int
    block_size: int
    total_blocks: int
    end_ids: tuple[int, ...]
    numerics: str  # "invariant": a row's logits are the same bits in any batch; or "fast"
    dtype: str
    device: str
    epoch: int
    folder: str  # where the tokenizer is
    identity: str = ""  # of weights, settings and machine: what passes take depends on nothing else; "": not known
    block_bytes: int = 0  # of KV memory; 0: the pool keeps its size
    least_blocks: int = 0  # what the pool was loaded with, and `resize` leaves it at least
    state_width: int = 0  # numbers of a state that it ships to heads; 0: it ships none
    weight_type: str = ""  # as weights lie in memory; `dtype` is the type that is computed in
    processor: str = ""  # that its code was made for

    @property
    def pool_tokens(self) -> int:
        """Return how many tokens the KV pool holds, whatever becomes of it."""
        return (self.least_blocks or self.total_blocks) * self.block_size

    @property
    def longest(self) -> int:
        """Return how many tokens a request may have, prompt and output together."""
        return min(self.max_positions, self.pool_tokens)


ANY_VOCABULARY = 0  # of a drafter that looks tokens up


@dataclass(frozen=True, slots=True)
class DrafterInfo:
    """The facts that an orchestrator must know about a drafter before it is asked."""

    model: str
    vocab_size: int  # it proposes lower ids alone; ANY_VOCABULARY: those of its texts
    max_positions: int
    epoch: int
    resident_bytes: int
    identity: str = ""  # as for a target
    wait_seconds: float = 0.0  # for a turn, of one more sender now
    step_seconds: float = 0.0  # of a level of a draft, of late; 0: not known
    device: str = ""  # whose memory those bytes are of: cpu or cuda; "": the target's
    state_width: int = 0  # numbers of the target's states that it reads; 0: it reads tokens alone


CUSTOM = "custom"  # what requests with objectives of their own and without a class are counted under


@dataclass(frozen=True, slots=True)
class Objective:
    """The latency that a request is to have, in seconds: of its first token since its arrival, and of each later one
    on average."""

    slo_class: str = ""  # of the profile; "": only numbers of its own
    ttft: float = math.inf  # infinite: as long as it takes
    tpot: float = math.inf
    measured: bool = True  # False: its class is relative to a baseline that nobody has measured yet

    @property
    def label(self) -> str:
        """Return the label that requests with this objective are counted under; "" where nothing was asked for."""
        return self.slo_class or (CUSTOM if min(self.ttft, self.tpot) < math.inf else "")


NO_OBJECTIVE = Objective()


class Attainment(str, Enum):
    """The outcome of an objective."""

    MET = "met"
    MISSED = "missed"
    UNKNOWN = "unknown"  # relative to a baseline that was not known when the request came
    REFUSED = "refused"
    UNFINISHED = "unfinished"  # the answer did not come to its end


@dataclass(frozen=True, slots=True)
class Request:
    """One generation, validated. `key` is the orchestrator's own id and the tag on target and drafters, `id` what its
    sender calls it."""

    key: int
    prompt: Ints
    max_tokens: int
    sampling: Sampling
    num_prompt: int
    priority: int = 0  # higher goes first
    tenant: str = ""
    speculation: str = "auto"  # auto, off, fixed:k
    drafter: str = ""  # "": the planner chooses
    arrival: float = 0.0
    objective: Objective = NO_OBJECTIVE
    id: str = ""

    @property
    def name(self) -> str:
        """Return what logs call the request."""
        return self.id or str(self.key)


class Progress(NamedTuple):
    """The tokens that one round brought one request. `finish` is set on the last one; an error has `error` too."""

    key: int
    tokens: Ints
    logprobs: Floats
    finish: Finish | None = None
    error: Exception | None = None
    drafted: int = 0  # totals of the request so far
    accepted: int = 0
    reused: int = 0
    rounds: int = 0
    acceptance: tuple[int, ...] = ()  # place j: drafts of the request so far of which j tokens were accepted
    drafters: tuple[tuple[str, int, int], ...] = ()  # in the order in which they first drafted: name, drafted, accepted
    top: Top = NO_TOP  # aligned with tokens, where it was asked for
    scores: Scores = NO_SCORES  # of the prompt, from its second token on, with the first of the output
    queued: float | None = None  # seconds that it waited before it first ran


JsonDict = dict[str, Any]
