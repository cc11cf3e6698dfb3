"""The values that travel between engine, planner, scheduler and ports.

Everything here is frozen or a plain array, and independent of torch and Triton. Ragged values are packed: row r of a
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

SPARSE = 16  # tokens in a sparse q row
GREEDY_BELOW = 1e-5  # temperature
LEAST_LOGPROB = -9999.0  # of an impossible token: JSON has no infinity

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
    NO_BLOCKS = 1  # the pool is exhausted: nothing was done for this row
    STALE = 2  # the tag is unknown: open it again with all its tokens
    SKIPPED = 3  # a drafter had no budget or time for this row
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
    """The settings for drawing tokens. Temperature 0 is greedy (see `greedy`). Repetition penalties (Hugging Face)
    count prompt and output; presence and frequency penalties (OpenAI) count only output."""

    temperature: float = 0.0
    top_k: int = 0  # 0: no limit
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 0  # no end token before this many output tokens
    end_ids: tuple[int, ...] = ()  # tokens that end a request
    bad_words: tuple[tuple[int, ...], ...] = ()  # token sequences never completed
    logit_bias: tuple[tuple[int, float], ...] = ()  # token (each once) and the number added to its logit
    seed: int = 0  # unsigned, 64 bits
    logprobs: bool = False
    top_logprobs: int = 0  # how many of the likeliest tokens to report at each position
    prompt_logprobs: bool = False  # also for the prompt's tokens
    rule: Rule = Rule.COUPLED
    grammar: str = ""  # the output must match it; in llguidance's form (`covey.text.grammar`)

    @property
    def greedy(self) -> bool:
        """Return whether the temperature is too low to draw any but the best tokens. Among equals the lowest id
        wins."""
        return self.temperature < GREEDY_BELOW

    @property
    def has_penalties(self) -> bool:
        """Return whether a draw depends on earlier tokens as well as on its logits."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or self.min_tokens > 0
            or bool(self.bad_words)
        )


LOOKUP = "lookup"  # the drafter name of offered drafts (`covey.contracts.ports.Companion`)


@dataclass(frozen=True, slots=True)
class Offer:
    """A chain of drafts for a text of `num_tokens` tokens, and the expected accepted tokens of its first 1, 2, ...
    drafts."""

    num_tokens: int
    tokens: list[int]
    accepted: list[float]


@dataclass(frozen=True, slots=True)
class Open:
    """A tag's first message to a target or drafter: all its tokens so far and the settings for drawing."""

    tag: int
    tokens: Ints  # the prompt, then earlier output (a replay after preemption or restart)
    num_prompt: int  # tokens of the prompt; penalties and min_tokens need it
    sampling: Sampling
    tenant: str = ""  # salts the prefix hashes: tenants never share blocks
    rounds: int = 0  # verify rounds of this request so far; keys the rejection rule's random streams
    name: str = ""  # the request's name in logs


@dataclass(frozen=True, slots=True)
class Trees:
    """One candidate tree per row, packed. `parents` index within the row's own tree, -1 for the root (the row's last
    committed token, which is no node). A parent comes before its children. `scores` are the drafter's log path
    probabilities with its noise counted in, the best predictor of acceptance. `log_q`, if shipped, leaves the noise
    out; with greedy settings both are equal. `q_ids` and `q_probs` (node by K) are the sparse distributions from which
    the nodes were drawn.

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

    @classmethod
    def chains(cls, drafts: Sequence[Sequence[int] | Ints]) -> Trees:
        """Return chains, one for each row."""
        sizes = [len(draft) for draft in drafts]
        return cls(
            np.cumsum([0, *sizes]).astype(np.int32),
            np.concatenate([np.asarray(draft, np.int32) for draft in drafts]) if sizes else NO_INTS,
            np.asarray([place - 1 for size in sizes for place in range(size)], np.int32),
        )

    @property
    def rows(self) -> int:
        return len(self.offsets) - 1

    def only(self, rows: npt.NDArray[np.bool_]) -> Trees:
        """Return the same rows, with empty trees for rows outside the mask."""
        return self.nodes(np.repeat(rows, self.sizes))

    def nodes(self, mask: npt.NDArray[np.bool_]) -> Trees:
        """Return the same rows with only these nodes and renumbered parents. Parents of kept nodes must be kept."""
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
    """One pass over the target. Row r belongs to `tags[r]` and computes at most `chunk[r]` known tokens without KV. If
    that reaches the last known token, the row verifies its tree and commits at least one new token."""

    tags: Ints
    base: Ints  # known tokens (prompt and committed) in the sender's view; a mismatch is answered STALE
    chunk: Ints
    trees: Trees
    opens: tuple[Open, ...] = ()
    frees: tuple[int, ...] = ()
    sequence: int = 0  # repeating the last number returns the stored answer; 0: never repeated
    epoch: int = 0  # the target's incarnation that the sender knows; 0 before the first answer
    room: Ints = field(default_factory=lambda: NO_INTS)  # per row: tokens it may still emit; empty: unknown
    origin: int = 0  # the sender and its incarnation (`covey.wire.ledger`)
    divergence: bool = False  # report how alike target and drafter are, from the trees' q rows
    states_from: Ints = field(default_factory=lambda: NO_INTS)  # per row: the first position to ship; -1: none
    next_depth: Ints = field(default_factory=lambda: NO_INTS)  # per row: what the target's own head drafts after it


@dataclass(frozen=True, slots=True, eq=False)
class Top:
    """The likeliest tokens at each of some positions and their log-probabilities, best first, as [places, k]. A request
    for fewer than k is padded with -1 and 0."""

    ids: Ints
    logprobs: Floats

    @classmethod
    def none(cls, places: int) -> Top:
        return cls(np.zeros((places, 0), np.int32), np.zeros((places, 0), np.float32))

    @classmethod
    def joined(cls, parts: Sequence[Top]) -> Top:
        """Return the places of all parts in order."""
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
    """The log-probabilities of some prompt tokens, and the likeliest tokens at their places."""

    logprobs: Floats
    top: Top = NO_TOP  # empty if no request wants it

    @classmethod
    def joined(cls, parts: Sequence[Scores]) -> Scores:
        return cls(np.concatenate([part.logprobs for part in parts]), Top.joined([part.top for part in parts]))

    def at(self, places: Any, width: int | None = None) -> Scores:
        """Return the scores of the given places, with `width` of the likeliest tokens at each."""
        return Scores(self.logprobs[places], self.top.at(places, width) if self.top.width else self.top)


NO_SCORES = Scores(NO_FLOATS)


@dataclass(frozen=True, slots=True)
class TargetReply:
    """The tokens that one pass committed: `tokens[offsets[r]:offsets[r + 1]]` for row r. The first `accepted[r]` of
    them were drafted. The row has `num_cached_tokens[r]` tokens with KV now, `reused[r]` of them from a prefix hit.
    `divergence[r]`, if asked for, is the mean over drafted positions of 1 - TV(p, q) at temperature 1, or a lower bound
    of it (`covey.target.divergence`). It is -1 if no node with q rows was verified."""

    status: Ints
    num_cached_tokens: Ints
    reused: Ints
    accepted: Ints
    offsets: Ints
    tokens: Ints
    logprobs: Floats  # aligned with tokens; the model's own, before penalties and temperature
    free_blocks: int
    total_blocks: int
    epoch: int
    seconds: float  # inside the pass, measured by the target
    divergence: Floats = field(default_factory=lambda: NO_FLOATS)  # empty: not asked for
    top: Top = NO_TOP  # aligned with tokens if any row asked for it, otherwise empty
    # Row r has `scores` of its prompt's tokens from `scored[r]` to `scored[r + 1]`. The last one belongs to the last
    # prompt token that its KV predicts. `scored` is empty if no row asked for scores.
    scored: Ints = field(default_factory=lambda: NO_INTS)
    scores: Scores = NO_SCORES
    # Row r has `states[state_offsets[r]:state_offsets[r + 1]]`, which a head reads (`covey.models.heads`): one per
    # position with KV from `states_from[r]` on. Empty if no row asked for states.
    state_offsets: Ints = field(default_factory=lambda: NO_INTS)
    states: Words = field(default_factory=lambda: NO_STATES)
    # Row r has `draft_tokens[draft_offsets[r]:draft_offsets[r + 1]]` for the next pass, a chain. Empty if no row was to
    # be drafted for, or the head has failed.
    draft_offsets: Ints = field(default_factory=lambda: NO_INTS)
    draft_tokens: Ints = field(default_factory=lambda: NO_INTS)
    draft_seconds: float = 0.0  # that this took, after the pass
    catch_up_seconds: float = 0.0  # that reading the tokens before took


class ResizeStatus(IntEnum):
    """The outcome of a resize of the KV pool."""

    OK = 0
    NOT_HERE = 1  # this pool has a fixed size, or cannot become that large or small
    LATER = 2  # memory is moving to or from the pool: ask again
    IN_USE = 3  # more blocks are in use than would remain
    NO_MEMORY = 4  # the device has no memory left


@dataclass(frozen=True, slots=True)
class Resized:
    """The answer to a resize."""

    status: ResizeStatus
    total_blocks: int  # in the pool now


@dataclass(frozen=True, slots=True)
class DraftWork:
    """The message of one call to a drafter: bring each tag up to date, then propose. Row r keeps the first `keep[r]`
    tokens that the drafter knows of the tag and appends `tokens[offsets[r]:offsets[r + 1]]`."""

    tags: Ints
    keep: Ints
    offsets: Ints
    tokens: Ints
    depth: Ints  # per row; 0 only catches up
    width: Ints
    rounds: Ints  # per row: verify rounds so far (rejection rule's streams)
    q_rows: bool = False  # ship the sparse distributions from which nodes were drawn
    opens: tuple[Open, ...] = ()  # start a history with Open.tokens; the row's own tokens follow
    frees: tuple[int, ...] = ()
    sequence: int = 0
    epoch: int = 0
    origin: int = 0
    patience: float = 0.0  # seconds for which the answer is useful; 0: unknown
    log_q: bool = False  # ship `Trees.log_q`
    vocab_size: int = 0  # propose only lower ids; 0: any
    # To a head: the target's states at the positions before the appended tokens, one for each token except a text's
    # first. Row r has `states[state_offsets[r]:state_offsets[r + 1]]`.
    state_offsets: Ints = field(default_factory=lambda: NO_INTS)
    states: Words = field(default_factory=lambda: NO_STATES)


@dataclass(frozen=True, slots=True)
class DraftReply:
    """Proposals by row; a row that is not OK has none. The drafter knows `seen[r]` tokens of the row, even if it has
    not computed all keys."""

    status: Ints
    seen: Ints
    trees: Trees
    epoch: int
    catch_up_seconds: float
    draft_seconds: float
    wait_seconds: float = 0.0  # in the drafter's queue
    again_seconds: float = 0.0  # the drafter is out of reach: ask again after this time. Not in messages


@dataclass(frozen=True, slots=True)
class TargetInfo:
    """The facts about a target that an orchestrator needs before the first request."""

    model: str
    vocab_size: int
    max_positions: int
    block_size: int
    total_blocks: int
    end_ids: tuple[int, ...]
    numerics: str  # "invariant": a row's logits have the same bits in any batch; or "fast"
    dtype: str
    device: str
    epoch: int
    folder: str  # with the tokenizer
    identity: str = ""  # of weights, settings and machine, which determine the times of passes; "": unknown
    block_bytes: int = 0  # KV bytes per block; 0: the pool has a fixed size
    least_blocks: int = 0  # the pool's size at load, below which `resize` never goes
    state_width: int = 0  # numbers in a state that it ships to heads; 0: ships none
    weight_type: str = ""  # type of the weights in memory; `dtype` is the type of the arithmetic
    processor: str = ""  # that its code was compiled for
    drafts_ahead: bool = False  # its own process computes its head as well, and drafts ahead (`TargetWork.next_depth`)

    @property
    def pool_tokens(self) -> int:
        """Return the tokens that the KV pool holds at least, however it is resized."""
        return (self.least_blocks or self.total_blocks) * self.block_size

    @property
    def longest(self) -> int:
        """Return the most tokens of a request, prompt and output together."""
        return min(self.max_positions, self.pool_tokens)

    @property
    def emulated(self) -> bool:
        """Return whether no real model makes the tokens."""
        return self.device == "emulated"


ANY_VOCABULARY = 0  # of a lookup drafter


@dataclass(frozen=True, slots=True)
class DrafterInfo:
    """The facts about a drafter that an orchestrator needs before its first call."""

    model: str
    vocab_size: int  # it proposes only lower ids; ANY_VOCABULARY: tokens of its texts
    max_positions: int
    epoch: int
    resident_bytes: int
    identity: str = ""  # as for a target
    wait_seconds: float = 0.0  # that one more sender would wait now
    step_seconds: float = 0.0  # recent time of one draft level; 0: unknown
    device: str = ""  # whose memory it uses: cpu or cuda; "": the target's
    state_width: int = 0  # numbers in the target's states that it reads; 0: reads only tokens


CUSTOM = "custom"  # label of requests with their own objective and no class


@dataclass(frozen=True, slots=True)
class Objective:
    """A request's latency objective in seconds: time to the first token after arrival, and mean time of each later
    token."""

    slo_class: str = ""  # a class of the profile; "": only own numbers
    ttft: float = math.inf  # infinite: no objective
    tpot: float = math.inf
    measured: bool = True  # False: relative to a baseline that is not measured yet

    @property
    def label(self) -> str:
        """Return the label under which requests with this objective are counted; "" without an objective."""
        return self.slo_class or (CUSTOM if min(self.ttft, self.tpot) < math.inf else "")


NO_OBJECTIVE = Objective()


class Attainment(str, Enum):
    """The outcome of an objective."""

    MET = "met"
    MISSED = "missed"
    UNKNOWN = "unknown"  # relative to a baseline that was unknown at arrival
    REFUSED = "refused"
    UNFINISHED = "unfinished"  # the answer was not completed


@dataclass(frozen=True, slots=True)
class Request:
    """One validated generation. `key` is the orchestrator's id and the tag on target and drafters; `id` is the sender's
    own name for it."""

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
    trace: str = ""  # the `traceparent` that it came with

    @property
    def name(self) -> str:
        """Return the request's name in logs."""
        return self.id or str(self.key)


class Progress(NamedTuple):
    """The tokens of one request from one round. `finish` is set on the last one; after an error, `error` as well."""

    key: int
    tokens: Ints
    logprobs: Floats
    finish: Finish | None = None
    error: Exception | None = None
    drafted: int = 0  # totals of the request so far
    accepted: int = 0
    reused: int = 0
    rounds: int = 0
    acceptance: tuple[int, ...] = ()  # at j: drafts of the request so far with exactly j accepted tokens
    drafters: tuple[tuple[str, int, int], ...] = ()  # name, drafted and accepted tokens, in order of first use
    top: Top = NO_TOP  # aligned with tokens, if asked for
    scores: Scores = NO_SCORES  # of the prompt from its second token on, sent with the first output
    queued: float | None = None  # seconds from arrival to its first round


JsonDict = dict[str, Any]
