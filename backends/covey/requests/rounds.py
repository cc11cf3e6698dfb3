"""One round as a value: its plan, drafts, verified drafts and result.

    Batch --plan--> Plan --draft--> Drafted --select--> kept --verify--> TargetReply, all of it: Round --learn-->

Parts that learn from a round get all of it, so they need to remember nothing between calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from covey.bandits.policy import Reason, Situation
from covey.contracts.ports import Clock
from covey.contracts.types import LOOKUP, NO_INTS, Ints, TargetReply, Trees
from covey.kv.elastic import Pressure
from covey.requests.pace import Pace
from covey.requests.scheduler import Batch


@dataclass(frozen=True, slots=True)
class Choice:
    """A question to a length policy, its answer and the reason. Without shares the policy was not asked."""

    situation: Situation
    depth: int
    reason: Reason
    capped: str = ""  # the limit of the depth or of its rows' drafts


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a round. Each row has a depth (0: plain decoding), a beam width, a drafter ("": none is available)
    and the reason for that drafter."""

    depth: Ints
    width: Ints
    drafter: tuple[str, ...]
    why: tuple[str, ...] = ()  # by decoding row; empty if a planner has failed
    choice: Choice | None = None  # None: no length policy learns from the round
    divergence: bool = False  # drafters ship q rows, and the target computes its block divergence from them
    log_q: bool = False  # drafters ship the log-probabilities of their drafts, without noise
    next_depth: Ints = field(default_factory=lambda: NO_INTS)  # by row: of the target's own head, for the next round
    mixed: bool = False  # some row verifies drafts of another choice, or fewer than its choice asked for


@dataclass(frozen=True, slots=True)
class Drafted:
    """The drafts that were proposed for a plan."""

    trees: Trees
    answered: npt.NDArray[np.bool_]  # rows whose drafter read their last token, even if it proposed no draft
    # Seconds inside each drafter that answered: drafting, and catching up before that.
    seconds: Mapping[str, float] = field(default_factory=dict)
    catch_up: Mapping[str, float] = field(default_factory=dict)
    drafter: tuple[str, ...] = ()  # by row, as planned

    @property
    def catch_up_seconds(self) -> float:
        """Return the longest time that a drafter took to read tokens it had missed."""
        return max(self.catch_up.values(), default=0.0)


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of a round by phase; selection counts as drafting."""

    plan: float
    draft: float
    verify: float
    commit: float

    @property
    def whole(self) -> float:
        """Return the time from admission, which counts as planning, to the publishing of progress. Learning and moves
        of memory come after it."""
        return self.plan + self.draft + self.verify + self.commit


class Laps:
    """Measures a round's phases."""

    def __init__(self, clock: Clock) -> None:
        self._now = clock.now
        self._ends = [clock.now()]

    @property
    def started(self) -> float:
        return self._ends[0]

    def end(self) -> float:
        """End a phase now, and return the time."""
        self._ends.append(self._now())
        return self._ends[-1]

    @property
    def times(self) -> Times:
        """Return the seconds of each phase; all must have ended."""
        return Times(*(end - start for start, end in zip(self._ends, self._ends[1:])))


@dataclass(frozen=True, slots=True)
class Round:
    """A finished round."""

    batch: Batch
    plan: Plan
    drafted: Drafted
    kept: Trees  # the drafts that were verified
    reply: TargetReply
    emitted: int  # tokens
    times: Times
    waiting: int  # requests, after it
    running: int
    preempted: int  # so far

    @property
    def prefill_tokens(self) -> int:
        chunk, decoding = self.batch.chunk, self.batch.decoding
        return int(chunk[decoding:].sum()) if len(chunk) > decoding else 0


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """The cost and the yield of one round, without references to requests. `pass_seconds` is inside the target, the
    rest of `verify_seconds` is transport."""

    rows: int
    decoding: int
    prefill_tokens: int
    trees: int
    drafted: int
    accepted: int
    emitted: int
    plan_seconds: float
    draft_seconds: float
    verify_seconds: float
    pass_seconds: float
    commit_seconds: float
    waiting: int
    running: int
    free_blocks: int
    total_blocks: int
    reused: int
    preempted: int
    plan: Plan
    sizes: Ints  # tokens drafted for each row, and how many of them were accepted
    accepts: Ints
    catch_up_seconds: float = 0.0  # part of draft_seconds: the longest catch-up of a drafter


def pressure_of(done: Round, most_running: int) -> Pressure:
    """Return the memory pressure after a round."""
    drafted = zip(done.plan.drafter, done.plan.depth.tolist())
    return Pressure(
        free=done.reply.free_blocks,
        total=done.reply.total_blocks,
        waiting=done.waiting,
        running=done.running,
        most_running=most_running,
        # Drafts from texts hold no memory that the pool could take.
        drafters=Counter(name for name, depth in drafted if depth and name != LOOKUP),
    )


def keep_pace(pace: Pace, done: Round) -> None:
    """Add a round to the pace."""
    times, rows = done.times, done.batch.decoding
    decoded = int(done.reply.offsets[rows])
    overhead, drafts = times.whole - times.verify, len(done.kept.tokens)
    pace.update(times.whole, rows, decoded, overhead=overhead, drafts=drafts)


def record_of(done: Round) -> RoundRecord:
    """Return the numbers of a round, without its requests and messages."""
    times, reply, kept = done.times, done.reply, done.kept
    own = reply.draft_seconds + reply.catch_up_seconds  # of the target's own head, at the end of its pass
    return RoundRecord(
        rows=len(done.batch.rows),
        decoding=done.batch.decoding,
        prefill_tokens=done.prefill_tokens,
        trees=int(np.count_nonzero(kept.sizes)),
        drafted=len(kept.tokens),
        accepted=int(reply.accepted.sum()),
        emitted=done.emitted,
        plan_seconds=times.plan,
        draft_seconds=times.draft + own,
        verify_seconds=max(0.0, times.verify - own),
        pass_seconds=reply.seconds,
        commit_seconds=times.commit,
        waiting=done.waiting,
        running=done.running,
        free_blocks=reply.free_blocks,
        total_blocks=reply.total_blocks,
        reused=int(reply.reused.sum()),
        preempted=done.preempted,
        plan=done.plan,
        sizes=kept.sizes,
        accepts=reply.accepted.copy(),  # a view would keep the whole message alive
        catch_up_seconds=max(done.drafted.catch_up_seconds, reply.catch_up_seconds),
    )
