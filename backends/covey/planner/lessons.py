"""From a round that is over to what a length policy may learn of it.

A round teaches only when it shows what a depth costs: no row with a depth of its own or a drafter that cannot be asked,
and an answer from every drafter that was; one with prefill in it is overheard. An answer may be empty: that a drafter
has nothing to offer is a lesson too, and a drafter that is late has not answered.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from covey.bandits.length import Outcome, Trials
from covey.rounds import Choice, Round
from covey.types import Ints, RowStatus

READING = 0.1  # of a round: a drafter that read for longer may have had no time left for rows without a proposal


@dataclass(frozen=True, slots=True)
class Lesson:
    """A round in a policy's words."""

    choice: Choice
    depth: int  # that was played: less than was chosen where no row had room for more
    drafted: bool  # whether any drafter answered
    seconds: float
    tokens: int
    taught: bool  # whether it shows what the depth costs,
    learnt: bool  # and nothing else
    outcome: Outcome | None  # None: it teaches nothing


def drafted_in(done: Round) -> bool:
    """Whether any drafter that was asked has answered."""
    rows = done.batch.decoding
    return bool((done.drafted.answered[:rows] & (done.plan.depth[:rows] > 0)).any())


def lesson_of(done: Round, choice: Choice, max_depth: int) -> Lesson:
    """What there is to learn from a round in which the policy was asked and rows decoded."""
    batch = done.batch
    asked = done.plan.depth[: batch.decoding]
    seconds = max(done.times.whole, 1e-9)  # a clock by hand may stand still
    drafted = drafted_in(done)
    taught = (
        bool(asked.any()) == (choice.depth > 0)
        and (choice.depth == 0 or "" not in done.plan.drafter[: batch.decoding])
        and _all_answered(done, choice)
        and done.emitted > 0
        and all(live.request.speculation == "auto" for live in batch.rows)
    )
    outcome = None
    if taught:
        outcome = Outcome(
            seconds=seconds,
            tokens=done.emitted,
            draft_seconds=done.times.draft,
            verify_seconds=done.times.verify,
            catch_up_seconds=done.drafted.catch_up_seconds,
            verified=batch.decoding + len(done.kept.tokens),
            trials=_trials(done, choice, max_depth) if drafted else {},
        )
    return Lesson(
        choice=choice,
        depth=int(asked.max()) if taught else choice.depth,
        drafted=drafted,
        seconds=seconds,
        tokens=done.emitted,
        taught=taught,
        learnt=taught and done.prefill_tokens == 0,
        outcome=outcome,
    )


def _trials(done: Round, choice: Choice, max_depth: int) -> dict[str, Trials]:
    """Per drafter: how many rows' drafts were looked at and accepted, by position."""
    rows = done.batch.decoding
    asked, width = done.plan.depth[:rows], done.plan.width[:rows]
    proposed, kept = done.drafted.trees.sizes[:rows], done.kept.sizes[:rows]
    # What was not worth verifying says nothing; what the drafter did not propose says that it had nothing.
    depths = np.where(kept < proposed, np.minimum(asked, kept), asked)
    looked = done.drafted.answered[:rows] & (asked > 0) & (done.reply.status[:rows] == RowStatus.OK)
    if done.drafted.catch_up_seconds > READING * (done.times.draft + done.times.verify):
        looked &= proposed > 0
    counts = (
        np.where(looked, depths, 0).astype(np.int32),
        done.reply.accepted[:rows],
        np.where(looked, asked * width, 0),
        np.where(looked, proposed, 0),
    )
    shares = choice.situation.shares
    if len(shares) == 1:
        return {shares[0][0]: _counted(max_depth, *counts)}
    names = np.array(done.plan.drafter[:rows])
    return {name: _counted(max_depth, *(np.where(names == name, each, 0) for each in counts)) for name, _ in shares}


def _counted(max_depth: int, depths: Ints, accepted: Ints, wanted: Ints, proposed: Ints) -> Trials:
    right = _at_least(np.minimum(depths, accepted), max_depth)
    deepest = int(depths.max())
    asked, came = int(wanted.sum()), int(proposed.sum())
    if int(depths.min()) == deepest:  # as a rule: then who was accepted is who is looked at next
        unseen = [0] * (max_depth - deepest)
        offered = [len(depths), *right[: deepest - 1], *unseen] if deepest else unseen
    else:
        offered = _at_least(np.minimum(depths, accepted + 1), max_depth)
    return Trials(offered, right, asked, came)


def _all_answered(done: Round, choice: Choice) -> bool:
    """Whether each drafter that was asked has answered, for one row at least: of a row that it does not know or has no
    room for it says so, and drafts for the others."""
    rows = done.batch.decoding
    asked, answered = done.plan.depth[:rows] > 0, done.drafted.answered[:rows]
    if len(choice.situation.shares) == 1:
        return bool((answered & asked).any() or not asked.any())
    drafter = done.plan.drafter
    wanted = np.flatnonzero(asked).tolist()
    return {drafter[row] for row in wanted} == {drafter[row] for row in wanted if answered[row]}


def _at_least(values: Ints, most: int) -> list[int]:
    """How many values are >= 1, >= 2, ... >= most."""
    counts = np.bincount(values, minlength=most + 1)
    reached: list[int] = np.cumsum(counts[::-1])[::-1][1 : most + 1].tolist()
    return reached
