"""The planner around a policy: from a batch to its situation, from the policy's depth to rows, from a round's record to
what the policy learns.

A round teaches only when it shows what a depth costs: no row with a depth of its own, and an answer from every drafter
that was asked; one with prefill in it is overheard. An answer may be empty: that a drafter has nothing to offer is a
lesson too, and a drafter that is late or rests has not answered. C_switch is refined by every catch-up that was
measured after a pause, whatever the policy, at the lag at which the policy asks for it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from covey.bandits.length import LengthPolicy, Outcome, Reason, Situation, Trials
from covey.planner.acceptance import Acceptance
from covey.planner.account import Account
from covey.planner.choice import Choice
from covey.planner.decisions import DecisionLog
from covey.planner.ranking import best
from covey.planner.rows import lay_out, spare
from covey.planner.switching import SwitchCost
from covey.scheduler import Batch
from covey.types import NO_INTS, Ints, JsonDict, RowStatus, TargetReply, Trees

if TYPE_CHECKING:
    from covey.engine import RoundRecord


@dataclass(frozen=True, slots=True)
class _Played:
    """A round that is over, as it was asked for and answered."""

    batch: Batch
    trees: Trees
    reply: TargetReply
    record: RoundRecord
    situation: Situation
    depth: int  # that the policy chose
    reason: Reason
    previous: int
    answered: npt.NDArray[np.bool_]  # decoding rows whose drafter has taken their last tokens in this round
    proposed: Ints  # and how many tokens it proposed for each
    asked: Ints

    @property
    def drafted(self) -> bool:
        return bool(self.answered.any())


NOBODY = Situation(0, 0)
NOTHING: npt.NDArray[np.bool_] = np.zeros(0, np.bool_)
READING = 0.1  # of a round: a drafter that read for longer may have had no time left for rows without a proposal


class GammaPlanner:
    """Implements `Planner`. Owns the policy's surroundings, not what it learns. Any thread may read `decisions` and
    `account` and ask for `state`; the rest is the engine's."""

    def __init__(
        self,
        policy: LengthPolicy,
        *,
        max_depth: int,
        width: int = 1,
        drafters: Sequence[str] = (),
        switch_cost: SwitchCost | None = None,
        log_capacity: int = 256,
    ) -> None:
        self.policy = policy
        self.decisions = DecisionLog(max_depth + 1, log_capacity)
        self.account = Account()
        self._learning = threading.Lock()  # held while the policy changes
        self._max_depth = max_depth
        self._width = width
        self._drafters = tuple(drafters)
        self._switch_cost = switch_cost or SwitchCost()
        self._acceptance = Acceptance(max_depth)  # over all drafters, for ranking
        self._previous = 0
        self._situation = NOBODY
        self._depth = 0
        self._answered = NOTHING
        self._proposed: Ints = NO_INTS
        self._unlearnt: _Played | None = None

    def plan(self, batch: Batch, token_budget: int) -> Choice:
        """The policy is asked only where its answer matters: some row leaves the depth to it."""
        free = bool(self._drafters) and any(live.request.speculation == "auto" for live in batch.rows[: batch.decoding])
        self._situation = self._look(batch, token_budget) if free else NOBODY
        with self._learning:
            self._depth = self.policy.choose(self._situation) if self._situation.rows else 0
        return lay_out(batch, token_budget, self._depth, self._width, self._drafters)

    def select(self, batch: Batch, trees: Trees) -> Trees:
        rows = batch.decoding
        first = self._drafters[0] if self._drafters else ""
        self._proposed = trees.sizes[:rows]
        self._answered = np.fromiter(
            (live.seen.get(live.request.drafter or first) == live.known for live in batch.rows[:rows]), np.bool_, rows
        )
        keep = self.policy.keep(rows)
        return trees if keep is None else best(batch, trees, keep, self._acceptance.rates())

    def observe(self, batch: Batch, trees: Trees, reply: TargetReply, record: RoundRecord) -> None:
        """A patient policy learns of a round that drafted while the next one drafts."""
        self._learn()
        asked = record.choice.depth[: batch.decoding]
        answered = self._answered & (asked > 0)
        played = _Played(
            batch=batch,
            trees=trees,
            reply=reply,
            record=record,
            situation=self._situation,
            depth=self._depth,
            reason=self.policy.reason,
            previous=self._previous,
            answered=answered,
            proposed=self._proposed,
            asked=asked,
        )
        if batch.decoding:
            self._previous = int(asked.max()) if played.drafted else 0
        self._unlearnt = played
        if not (self.policy.patient and played.drafted and record.running):
            self._learn()

    def meanwhile(self) -> None:
        if self._unlearnt is not None:
            self._learn()
            if self._situation.rows:
                self.policy.prepare(self._situation)

    def state(self) -> JsonDict | None:
        """What the policy has learnt; the engine waits meanwhile, for less than a millisecond."""
        with self._learning:
            return self.policy.state()

    def restore(self, state: JsonDict) -> None:
        """As `LengthPolicy.restore`."""
        with self._learning:
            self.policy.restore(state)

    def _learn(self) -> None:
        """Of the round that was put off, if any."""
        played, self._unlearnt = self._unlearnt, None
        if played is not None:
            with self._learning:
                self._observe(played)

    def _observe(self, played: _Played) -> None:
        batch, record, situation, depth = played.batch, played.record, played.situation, played.depth
        drafted = played.drafted
        if drafted and played.previous == 0 and record.catch_up_seconds > 0:
            self._switch_cost.observe(self.policy.switch_lag(situation), situation.drafting, record.catch_up_seconds)
        if not situation.rows or not batch.decoding:
            return
        taught = (
            bool(played.asked.any()) == (depth > 0)
            and _all_answered(played)
            and record.emitted > 0
            and all(live.request.speculation == "auto" for live in batch.rows)
        )
        seconds = record.plan_seconds + record.draft_seconds + record.verify_seconds + record.commit_seconds
        seconds = max(seconds, 1e-9)  # a clock by hand may stand still
        learnt = taught and record.prefill_tokens == 0
        if taught:
            depth = int(played.asked.max())  # less than was chosen where no row had room for more
            trials = self._trials(played) if drafted else {}
            for counts in trials.values():
                self._acceptance.update(counts.offered, counts.accepted)
            outcome = Outcome(
                seconds=seconds,
                tokens=record.emitted,
                draft_seconds=record.draft_seconds,
                verify_seconds=record.verify_seconds,
                catch_up_seconds=record.catch_up_seconds,
                verified=batch.decoding + len(played.trees.tokens),
                trials=trials,
            )
            (self.policy.update if learnt else self.policy.overhear)(situation, depth, outcome)
        self.account.add(
            depth,
            played.reason,
            ceiling=situation.ceiling,
            switch="" if drafted == (played.previous > 0) else "on" if drafted else "off",
            tokens=record.emitted,
            seconds=seconds if learnt else None,
        )
        self.decisions.add(
            rows=situation.rows,
            lag=situation.lag,
            depth=depth,
            why=played.reason.word,
            predicted=played.reason.predicted,
            seconds=seconds,
            tokens=record.emitted,
            learnt=learnt,
        )

    def _look(self, batch: Batch, token_budget: int) -> Situation:
        rows = batch.decoding
        first = self._drafters[0]
        counts: dict[str, int] = {}
        lag = missed = 0
        alike = True  # every row drafts a chain of the policy's depth
        for live in batch.rows[:rows]:
            if live.request.speculation != "auto":
                alike = False
                continue
            name = live.request.drafter or first
            counts[name] = counts.get(name, 0) + 1
            unseen = live.known - live.seen.get(name, 0)
            lag = max(lag, unseen)
            missed += unseen
        ceiling = max(0, min(self._max_depth, spare(batch, token_budget)))
        prefill = int(batch.chunk[rows:].sum()) if len(batch.rows) > rows else 0
        drafts = () if alike and self._width == 1 else self._drafts(batch, token_budget)
        return Situation(rows, ceiling, self._previous, lag, tuple(counts.items()), prefill, missed, drafts)

    def _drafts(self, batch: Batch, token_budget: int) -> tuple[int, ...]:
        """Tokens that all rows are asked to draft, by the policy's depth."""
        choices = (
            lay_out(batch, token_budget, depth, self._width, self._drafters) for depth in range(self._max_depth + 1)
        )
        return tuple(int(np.dot(choice.depth, choice.width)) for choice in choices)

    def _trials(self, played: _Played) -> dict[str, Trials]:
        """Per drafter: how many rows' drafts were looked at and accepted, by position."""
        choice, rows, proposed, record = played.record.choice, len(played.answered), played.proposed, played.record
        kept = played.trees.sizes[:rows]
        depths = choice.depth[:rows]
        # What was not worth verifying says nothing; what the drafter did not propose says that it had nothing.
        depths = np.where(kept < proposed, np.minimum(depths, kept), depths)
        looked = played.answered & (played.reply.status[:rows] == RowStatus.OK)
        if record.catch_up_seconds > READING * (record.draft_seconds + record.verify_seconds):
            looked &= proposed > 0
        depths = np.where(looked, depths, 0).astype(np.int32)
        wanted = np.where(looked, choice.depth[:rows] * choice.width[:rows], 0)
        proposed = np.where(looked, proposed, 0)
        accepted = played.reply.accepted[:rows]
        shares = played.situation.shares
        if len(shares) == 1:
            return {shares[0][0]: self._counted(depths, accepted, wanted, proposed)}
        names = np.array(choice.drafter[:rows])
        counts = depths, accepted, wanted, proposed
        return {name: self._counted(*(np.where(names == name, each, 0) for each in counts)) for name, _ in shares}

    def _counted(self, depths: Ints, accepted: Ints, wanted: Ints, proposed: Ints) -> Trials:
        right = _at_least(np.minimum(depths, accepted), self._max_depth)
        deepest = int(depths.max())
        asked, came = int(wanted.sum()), int(proposed.sum())
        if int(depths.min()) == deepest:  # as a rule: then who was accepted is who is looked at next
            unseen = [0] * (self._max_depth - deepest)
            offered = [len(depths), *right[: deepest - 1], *unseen] if deepest else unseen
        else:
            offered = _at_least(np.minimum(depths, accepted + 1), self._max_depth)
        return Trials(offered, right, asked, came)


def _all_answered(played: _Played) -> bool:
    """Whether each drafter that was asked has answered, for one row at least: of a row that it does not know or has no
    room for it says so, and drafts for the others."""
    if len(played.situation.shares) == 1:
        return bool(played.answered.any() or not played.asked.any())
    rows, drafter = np.flatnonzero(played.asked).tolist(), played.record.choice.drafter
    return {drafter[row] for row in rows} == {drafter[row] for row in rows if played.answered[row]}


def _at_least(values: Ints, most: int) -> list[int]:
    """How many values are >= 1, >= 2, ... >= most."""
    counts = np.bincount(values, minlength=most + 1)
    found: list[int] = np.cumsum(counts[::-1])[::-1][1 : most + 1].tolist()
    return found
