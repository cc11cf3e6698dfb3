"""Schedules reading: drafters read text that others drafted, which shows what they would have drafted.

A fixed share of all time goes into a bank. Each reading call pays from it for the time that rounds lose by the call
(`interference`). The drafter that may gain most tokens per second over the rows' present drafters reads first. If no
drafter promises a gain and the bank is full, the one that has not read for longest reads, at a higher price. The prompt
of a new request is read by drafters that may be better for it than the likeliest best one. No drafter reads text of the
rejection rule, since it does not show what another drafter would have drafted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from covey.contracts.types import Rule
from covey.planner.drafters.beliefs import Array, Beliefs
from covey.planner.drafters.interference import Interference
from covey.planner.drafters.policy import ASKED, Assignment, is_free
from covey.requests.active import ActiveRequest
from covey.requests.rounds import Judge, Round
from covey.requests.scheduler import Batch

SHARE = 0.01  # share of all time that rounds may lose by reading
# Rounds in the bank: START at first and at most; below DEEPEST no prompt is read; above FULL a reader is sought every
# round, if need be the one that has not read for longest.
START, DEEPEST, FULL = 50.0, -5.0, 12.0
USUAL = 0.05  # weight of a new round in the mean round time
CURIOUS = 5.0  # price factor of reading that promises nothing: beliefs may be wrong, but seldom are
CHUNK = 16  # tokens of a row that are worth a call
MOST_ROWS, MOST_TOKENS = 4, 256  # the most that one call reads: neighbours learn from one another
SHAPE = 16  # calls read multiples of this many tokens, since libraries prepare for every new shape
WINDOW = 32  # last tokens of a text that are judged
PROMPT, PROMPTS = 32, 2  # last tokens of a prompt that are judged, and prompts of a call
PROMPT_TOKENS = 512  # prompt tokens that one call reads; longer prompts are not read ahead
PROMPTERS = 8  # drafters that read a prompt
HOPE = 1.5  # deviations that an optimistic estimate adds; a drafter is worth reading if that gains


_Sought = tuple[int, list[ActiveRequest], list[int]]  # a drafter, the requests it reads, and where judging starts


@dataclass(slots=True)
class _Reading:
    """The state of one drafter's reading."""

    seconds: float = 0.002  # moving average of a call
    round: int = 0  # the round of its last call
    prompts: bool = True  # whether it judges prompts
    prompt: ActiveRequest | None = None  # the last request whose prompt it had to judge


class ReadScheduler:
    """Owns the bank. Judgements by readers go into the beliefs when rows are next assigned."""

    def __init__(self, names: Sequence[str], beliefs: Beliefs, speeds: Callable[..., list[Array]]) -> None:
        """`speeds` is `CoveyDrafters._speeds`."""
        self._names = list(names)
        self._speeds = speeds
        self._beliefs = beliefs
        self._reads = [_Reading() for _ in names]
        self._round = 0
        self._bank = START
        self._usual = 0.0  # seconds of a round; 0 before any was seen
        self._interference = Interference()
        self._sought: tuple[_Sought, ...] | None = None  # for the next round

    def judges(self, batch: Batch, assigned: Assignment, serving: Sequence[int], *, fresh: bool) -> tuple[Judge, ...]:
        """Return the judges of prompts, else one that catches up. `fresh` says that rows were just assigned."""
        prompts = self._for_prompts(batch, serving)
        if prompts:
            return prompts
        if self._sought is None:
            self.seek(batch, assigned, serving, fresh=fresh)
        sought, self._sought = self._sought or (), None
        rows = {id(active): row for row, active in enumerate(batch.rows[: batch.decoding])} if sought else {}
        judges = []
        for drafter, actives, judge in sought:
            there = {rows[id(active)]: start for active, start in zip(actives, judge) if id(active) in rows}
            if there:
                judges.append(self._judge(batch, drafter, list(there), list(there.values()), MOST_TOKENS))
        return tuple(judges)

    def seek(self, batch: Batch, assigned: Assignment, serving: Sequence[int], *, fresh: bool) -> None:
        """Choose the drafter that catches up in the next round, if rows were just assigned or the bank is full."""
        due = self._bank > 0.0 and (fresh or self._bank >= FULL)
        self._sought = self._catching_up(batch, assigned, serving) if due else ()

    def learn(self, done: Round) -> None:
        """Learn how long reading took, and which drafters judge prompts."""
        self._round += 1
        times = done.times
        self._usual += (USUAL if self._usual else 1.0) * (times.whole - self._usual)
        self._bank = min(START, self._bank + SHARE * self._rounds(times.whole))
        self._interference.add(times.whole, times.verify + times.commit, done.drafted.read.values())
        for name, seconds in done.drafted.read.items():
            self._bank -= self._interference.price * self._rounds(seconds)
            reads = self._reads[self._names.index(name)]
            reads.seconds += 0.2 * (seconds - reads.seconds)
            judged = reads.prompt.judgements.get(name) if reads.prompt is not None else None
            if judged is not None:
                reads.prompts = judged.prompt_tokens > 0 or not judged.read  # it had no room if it read nothing
                reads.prompt = None

    def expected(self, seconds: float) -> None:
        """Note the expected time of the last round."""
        self._interference.expected(seconds)

    def _for_prompts(self, batch: Batch, serving: Sequence[int]) -> tuple[Judge, ...]:
        """Return the judges of new requests' prompts. A prompt's first token is not judged."""
        new = [
            (row, active)
            for row, active in enumerate(batch.rows)
            if not active.output and is_free(active) and 1 < active.request.num_prompt <= PROMPT_TOKENS
        ]
        if not new or not serving or self._bank < DEEPEST:
            return ()
        wanted: dict[int, list[int]] = {}
        actives = [active for _, active in new]
        likeliest, could = (each[:, serving] for each in self._expected(actives))
        hopes = (could > likeliest.max(axis=1)[:, None]) & self._beliefs.holds(actives)[:, serving]
        for (row, active), hope in zip(new, hopes):
            unsure = [each for each, may in zip(serving, hope) if may and self._silent(each, active)]
            for each in unsure[:PROMPTERS]:
                if len(wanted.setdefault(each, [])) < PROMPTS:
                    wanted[each].append(row)
        return tuple(self._prompts_of(batch, drafter, rows) for drafter, rows in wanted.items())

    def _rounds(self, seconds: float) -> float:
        return seconds / self._usual if self._usual else 0.0

    def _expected(self, rows: Sequence[ActiveRequest]) -> list[Array]:
        """Return the tokens per second of rows with each drafter: likeliest and optimistic."""
        return self._speeds(len(rows), *self._beliefs.expected(rows, 0.0, HOPE))

    def _silent(self, drafter: int, active: ActiveRequest) -> bool:
        """Return whether a drafter that judges prompts has not seen this one."""
        return self._reads[drafter].prompts and self._names[drafter] not in active.seen

    def _prompts_of(self, batch: Batch, drafter: int, rows: list[int]) -> Judge:
        ends = [batch.rows[row].request.num_prompt for row in rows]
        self._reads[drafter].prompt = batch.rows[rows[0]]
        return self._judge(batch, drafter, rows, [max(1, end - PROMPT) for end in ends], PROMPT_TOKENS)

    def _catching_up(self, batch: Batch, assigned: Assignment, serving: Sequence[int]) -> tuple[_Sought, ...]:
        rows = [
            row
            for row, active in enumerate(batch.rows[: batch.decoding])
            if assigned.why[row] != ASKED and active.request.sampling.rule is Rule.COUPLED
        ]
        if not rows:
            return ()
        actives = [batch.rows[row] for row in rows]
        # A row's own drafter may be unavailable while others serve.
        own = np.array([self._names.index(assigned.drafters[row]) for row in rows])
        lengths, prompts = np.array([(active.num_tokens, active.request.num_prompt) for active in actives]).T
        starts = np.maximum(self._beliefs.ends(actives)[:, serving], prompts[:, None])
        worth = (lengths[:, None] - starts >= CHUNK) & (own[:, None] != np.asarray(serving))
        worth &= self._beliefs.holds(actives)[:, serving]
        if not worth.any():
            return ()
        likeliest, could = self._expected(actives)
        now = likeliest[np.arange(len(rows)), own]
        hope = np.where(worth, (could[:, serving] - now[:, None]).clip(0.0), -1.0)
        order = np.argsort(-hope, axis=0, kind="stable")[:MOST_ROWS]  # each drafter's rows that may gain most
        promise = np.take_along_axis(hope, order, 0).clip(0.0).sum(axis=0)
        best = int(promise.argmax())
        curious = promise[best] <= 0.0
        if curious:
            if self._bank < FULL:
                return ()
            best = min(np.flatnonzero(worth.any(axis=0)).tolist(), key=lambda at: self._reads[serving[at]].round)
        reads = self._reads[serving[best]]
        takes = self._interference.price * self._rounds(reads.seconds)
        if self._bank < takes:
            return ()
        if curious:
            self._bank -= (CURIOUS - 1.0) * takes
        reads.round, reads.prompt = self._round, None  # its next judgement may not be about a prompt
        mine = [at for at in order[:, best].tolist() if worth[at, best]]
        judge = np.maximum(starts[mine, best], lengths[mine] - WINDOW).tolist()
        return ((serving[best], [actives[at] for at in mine], judge),)

    def _judge(self, batch: Batch, drafter: int, rows: list[int], judge: list[int], most: int) -> Judge:
        name, unread, actives = self._names[drafter], 0, [batch.rows[row] for row in rows]
        for active, end in zip(actives, self._beliefs.ends(actives)[:, drafter].tolist()):
            read = max(end, active.judgements[name].read) if name in active.judgements else end  # or drafted
            unread += active.num_tokens - min(read, active.seen.get(name, 0))  # sent tokens may be unread
        budget = max(SHAPE, min(most, unread) // SHAPE * SHAPE)
        return Judge(name, np.asarray(rows, np.int32), np.asarray(judge, np.int32), budget)
