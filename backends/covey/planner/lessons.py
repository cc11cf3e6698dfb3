"""Turns a round that is over into what a length policy may learn from it.

A round shows what a depth costs where every row drafted as deep as was chosen, or as it had room for: no row with a
depth of its own or a drafter that cannot be asked, an answer from every drafter that was, and no prefill beside it.
Any other one is overheard: it still shows what a pass over so many tokens takes, what drafting took and which drafts
were right. An answer may be empty: that a drafter has nothing to offer is a lesson too, and a drafter that is late has
not answered.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from covey.bandits.length import DraftCall, Outcome, Trials
from covey.contracts.types import LOOKUP, Ints, RowStatus, Trees
from covey.requests.rounds import Choice, Round
from covey.trees.paths import Nodes

READING = 0.1  # share of a round: a drafter that read for longer may have had no time left for all rows


@dataclass(frozen=True, slots=True)
class Lesson:
    """A round as a length policy learns from it."""

    choice: Choice
    depth: int  # the depth that was chosen; less where no row had room for more
    played: int  # the deepest draft of any row whose drafter has answered
    drafted: bool  # whether any drafter answered
    seconds: float
    tokens: int
    whole: bool  # whether it shows what the depth costs, and nothing else
    outcome: Outcome | None  # None: it teaches nothing


def drafted_in(done: Round) -> bool:
    """Return whether any drafter that was asked has answered."""
    rows = done.batch.decoding
    return bool((done.drafted.answered[:rows] & (done.plan.depth[:rows] > 0)).any())


def asked_in(done: Round) -> Ints:
    """Return, by decoding row, how deep its drafter was asked to draft, -1 if the round says nothing of any drafter, as
    where its own text offered the drafts, or where a drafter may have had no time left, having read for long."""
    rows = done.batch.decoding
    asked, proposed = done.plan.depth[:rows], done.drafted.trees.sizes[:rows]
    looked = done.drafted.answered[:rows] & (asked > 0) & (done.reply.status[:rows] == RowStatus.OK)
    if LOOKUP in done.plan.drafter:
        looked &= np.array([name != LOOKUP for name in done.plan.drafter[:rows]])
    if done.drafted.catch_up_seconds > READING * (done.times.draft + done.times.verify):
        looked &= proposed > 0
    depths: Ints = np.where(looked, asked, -1).astype(np.int32)
    return depths


def tried(done: Round) -> Ints:
    """Return, by decoding row, how many of its drafter's drafts the round has tried, -1 as in `asked_in`. Drafts that
    were not verified are not tried; drafts that the drafter did not propose are."""
    rows, depths = done.batch.decoding, asked_in(done)
    dropped = done.kept.sizes[:rows] < done.drafted.trees.sizes[:rows]
    if dropped.any():
        depths = np.where(dropped, np.minimum(depths, deepest_kept(done.kept)[:rows]), depths).astype(np.int32)
    return depths


def lesson_of(done: Round, choice: Choice, max_depth: int) -> Lesson:
    """Return what a round in which rows decoded teaches."""
    batch = done.batch
    asked = done.plan.depth[: batch.decoding]
    deepest = int(asked.max())
    alike = (
        bool(choice.situation.shares)
        and (deepest > 0) == (choice.depth > 0)
        and (choice.depth == 0 or "" not in done.plan.drafter[: batch.decoding])
        and LOOKUP not in done.plan.drafter
        and all(active.request.speculation == "auto" for active in batch.rows)
    )
    answers = _answers(done) if deepest else {}
    complete = bool(done.emitted) and all(answers.values())
    played = int(np.where(done.drafted.answered[: batch.decoding], asked, 0).max()) if deepest else 0
    seconds = max(done.times.whole, 1e-9)  # a clock by hand may stand still
    outcome = None
    if done.emitted:
        names = [name for name, answered in answers.items() if answered]
        outcome = Outcome(
            seconds=seconds,
            tokens=done.emitted,
            draft_seconds=done.times.draft,
            verify_seconds=done.times.verify,
            catch_up_seconds=done.drafted.catch_up_seconds,
            verified=batch.decoding + len(done.kept.tokens),
            trials=_trials(done, names, max_depth) if names else {},
            calls=_calls(done, names) if names and complete else {},  # else the round waited for no answer
        )
    return Lesson(
        choice=choice,
        depth=deepest if alike and complete else choice.depth,
        played=played,
        drafted=deepest > 0 and drafted_in(done),
        seconds=seconds,
        tokens=done.emitted,
        whole=alike and complete and done.prefill_tokens == 0,
        outcome=outcome,
    )


def _answers(done: Round) -> dict[str, bool]:
    """Return, by drafter that was asked, whether it has answered for at least one row. What texts offer is asked of
    nobody."""
    rows = done.batch.decoding
    asked, answered = done.plan.depth[:rows] > 0, done.drafted.answered[:rows]
    names = done.plan.drafter[:rows]
    if len(set(names)) == 1:
        return {names[0]: bool((answered & asked).any())} if names[0] != LOOKUP else {}
    answers: dict[str, bool] = {}
    for row in np.flatnonzero(asked).tolist():
        answers[names[row]] = answers.get(names[row], False) or bool(answered[row])
    answers.pop(LOOKUP, None)
    return answers


def _by_drafter(done: Round, names: Iterable[str]) -> dict[str, npt.NDArray[np.bool_] | slice]:
    """Return, by drafter, a mask of the decoding rows that it drafts for."""
    drafters = done.plan.drafter[: done.batch.decoding]
    if len(set(drafters)) == 1:
        return {name: slice(None) for name in names}
    whose = np.array(drafters)
    return {name: whose == name for name in names}


def _calls(done: Round, names: Iterable[str]) -> dict[str, DraftCall]:
    rows = done.batch.decoding
    depths = np.where(done.drafted.answered[:rows], done.plan.depth[:rows], 0)
    deepest = int(depths.max())
    by_drafter, seconds = _by_drafter(done, names).items(), done.drafted.seconds
    lanes = done.plan.width[:rows]
    return {
        name: DraftCall(_at_least(np.repeat(depths[mine], lanes[mine]), deepest), seconds[name])
        for name, mine in by_drafter
    }


def _trials(done: Round, names: Iterable[str], max_depth: int) -> dict[str, Trials]:
    """Return, by drafter, how many rows' drafts were looked at and accepted, by position. What was not verified was
    looked at in vain, as what was not proposed: the tokens of a round are those of what is in its pass."""
    rows = done.batch.decoding
    depths = asked_in(done)
    looked = depths >= 0
    counts = (
        np.clip(depths, 0, max_depth),
        done.reply.accepted[:rows],
        np.where(looked, done.plan.depth[:rows] * done.plan.width[:rows], 0),
        np.where(looked, done.kept.sizes[:rows], 0),
    )
    by_drafter = _by_drafter(done, names).items()
    return {name: _counted(max_depth, *(each[mine] for each in counts)) for name, mine in by_drafter}


def tried_by_position(done: Round, max_depth: int) -> tuple[list[int], list[int]]:
    """Return how many rows' drafts the round has tried, and accepted, by position, whoever made them."""
    depths, accepted = tried(done), done.reply.accepted[: done.batch.decoding]
    offered = np.clip(np.minimum(depths, accepted + 1), 0, max_depth)
    return _at_least(offered, max_depth), _at_least(np.clip(np.minimum(depths, accepted), 0, max_depth), max_depth)


def deepest_kept(trees: Trees) -> Ints:
    """Return the depth of each row's tree."""
    found = np.zeros(trees.rows, np.int32)
    nodes = Nodes.of(trees)
    np.maximum.at(found, nodes.row_of, nodes.depth.astype(np.int32))
    return found


def _counted(max_depth: int, depths: Ints, accepted: Ints, wanted: Ints, verified: Ints) -> Trials:
    right = _at_least(np.minimum(depths, accepted), max_depth)
    deepest = int(depths.max())
    asked, came = int(wanted.sum()), int(verified.sum())
    if int(depths.min()) == deepest:  # as a rule: then who was accepted is who is looked at next
        unseen = [0] * (max_depth - deepest)
        offered = [len(depths), *right[: deepest - 1], *unseen] if deepest else unseen
    else:
        offered = _at_least(np.minimum(depths, accepted + 1), max_depth)
    return Trials(offered, right, asked, came)


def _at_least(values: Ints, most: int) -> list[int]:
    """Return how many values are >= 1, >= 2, ... >= most."""
    counts = np.bincount(values, minlength=most + 1)
    reached: list[int] = np.cumsum(counts[::-1])[::-1][1 : most + 1].tolist()
    return reached
