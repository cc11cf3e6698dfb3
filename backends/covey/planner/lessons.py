"""Turns a finished round into a lesson for the length policy.

A round shows the cost of a depth only if its rows were to draft to the chosen depth or to their own limits. No request
may set its own depth, every drafter must be available and have answered for some row, and the pass must hold no
prefill. A policy overhears any other round: that still shows the time of the pass, the time of drafting, and which
drafts were right.

An empty answer counts as an answer, since it shows that the drafter has nothing to propose. A late drafter has not
answered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from covey.bandits.leaning import Leaning
from covey.bandits.policy import DraftCall, Kind, Outcome, Trials
from covey.contracts.types import LOOKUP, Ints, RowStatus, Trees
from covey.requests.rounds import Choice, Round
from covey.trees.paths import Nodes

READING = 0.1  # share of a round: a drafter that read for longer may have had no time to draft for all rows


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a length policy learns from one round."""

    choice: Choice
    depth: int  # the chosen depth; less if no row had room for it
    played: int  # the deepest draft of any row whose drafter answered
    drafted: bool  # whether any drafter answered
    seconds: float
    tokens: int
    drafts: int  # tokens verified, of whatever drafter
    whole: bool  # whether the round shows the cost of `depth`
    outcome: Outcome | None  # None: it teaches nothing


def drafted_in(done: Round) -> bool:
    """Return whether any drafter that was asked has answered."""
    rows = done.batch.decoding
    return bool((done.drafted.answered[:rows] & (done.plan.depth[:rows] > 0)).any())


def asked_in(done: Round) -> Ints:
    """Return the depth that each decoding row's drafter was asked for, -1 if the row says nothing about a drafter.
    Examples: the drafts came from the row's own text, or the drafter read so long that it may have had no time."""
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
    """Return how many drafts of each decoding row the round has tried, -1 as in `asked_in`. Drafts that a selector
    dropped are not tried; drafts that the drafter was asked for but did not propose are."""
    rows, depths = done.batch.decoding, asked_in(done)
    dropped = done.kept.sizes[:rows] < done.drafted.trees.sizes[:rows]
    if dropped.any():
        depths = np.where(dropped, np.minimum(depths, deepest_kept(done.kept)[:rows]), depths).astype(np.int32)
    return depths


def lesson_of(done: Round, choice: Choice, max_depth: int, drafted_before: tuple[float, float] = (0.0, 0.0)) -> Lesson:
    """Return the lesson of a round in which rows decoded. The target's own head drafts for a round at the end of the
    one before: `drafted_before` are the seconds that it drafted and read then."""
    batch = done.batch
    asked = done.plan.depth[: batch.decoding]
    deepest = int(asked.max())
    alike = (
        bool(choice.situation.shares)
        and not done.plan.mixed
        and (deepest > 0) == (choice.depth > 0)
        and (choice.depth == 0 or "" not in done.plan.drafter[: batch.decoding])
        and LOOKUP not in done.plan.drafter
        and all(active.request.speculation == "auto" for active in batch.rows)
    )
    answers = _answers(done) if deepest else {}
    complete = bool(done.emitted) and all(answers.values())
    played = int(np.where(done.drafted.answered[: batch.decoding], asked, 0).max()) if deepest else 0
    own, read = drafted_before
    for_next = done.reply.draft_seconds + done.reply.catch_up_seconds
    seconds = max(done.times.whole - for_next + own + read, 1e-9)  # a manual clock may stand still
    outcome = None
    if done.emitted:
        names = [name for name, answered in answers.items() if answered]
        outcome = Outcome(
            seconds=seconds,
            tokens=done.emitted,
            draft_seconds=done.times.draft + own + read,
            verify_seconds=max(0.0, done.times.verify - for_next),
            catch_up_seconds=max(done.drafted.catch_up_seconds, read),
            verified=batch.decoding + len(done.kept.tokens),
            trials=_trials(done, names, max_depth) if names else {},
            calls=_calls(done, names) if names and complete else {},  # else draft time includes a wait for no answer
        )
    return Lesson(
        choice=choice,
        depth=deepest if alike and complete else choice.depth,
        played=played,
        drafted=deepest > 0 and drafted_in(done),
        seconds=seconds,
        tokens=done.emitted,
        drafts=len(done.kept.tokens),
        whole=alike and complete and done.prefill_tokens == 0,
        outcome=outcome,
    )


def _answers(done: Round) -> dict[str, bool]:
    """Return, for each drafter that was asked, whether it answered for at least one row. Offers from texts ask no
    drafter."""
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
    """Return each drafter's mask of the decoding rows that it drafts for."""
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


def _trials(done: Round, names: Iterable[str], max_depth: int) -> dict[Kind, Trials]:
    """Return the counts of rows whose drafts were tried and accepted, by position, for each kind of rows. A draft that
    was not proposed or not verified counts as tried and not accepted, since the pass emits no token for it."""
    rows = done.batch.decoding
    depths = asked_in(done)
    looked = depths >= 0
    counts = (
        np.clip(depths, 0, max_depth),
        done.reply.accepted[:rows],
        np.where(looked, done.plan.depth[:rows] * done.plan.width[:rows], 0),
        np.where(looked, done.kept.sizes[:rows], 0),
    )
    tried, leanings = np.minimum(counts[0], counts[1] + 1), [active.leaning for active in done.batch.rows[:rows]]
    chains = tuple(zip(leanings, tried.tolist(), np.minimum(counts[0], counts[1]).tolist()))
    by_drafter = _by_drafter(done, names).items()
    random = np.array([not active.request.sampling.greedy for active in done.batch.rows[:rows]])
    if random.all() or not random.any():
        kind = bool(random[0])
        return {(name, kind): _counted(max_depth, chains, mine, *counts) for name, mine in by_drafter}
    found = {}
    for name, mine in by_drafter:
        for kind in (False, True):
            those = np.zeros(rows, np.bool_)
            those[mine] = random[mine] == kind
            if those.any():
                found[name, kind] = _counted(max_depth, chains, those, *counts)
    return found


def tried_by_position(done: Round, max_depth: int) -> tuple[list[int], list[int]]:
    """Return how many rows' drafts the round has tried and accepted, by position, over all drafters."""
    depths, accepted = tried(done), done.reply.accepted[: done.batch.decoding]
    reached = np.clip(np.minimum(depths, accepted + 1), 0, max_depth)
    return _at_least(reached, max_depth), _at_least(np.clip(np.minimum(depths, accepted), 0, max_depth), max_depth)


def deepest_kept(trees: Trees) -> Ints:
    """Return the depth of each row's tree."""
    found = np.zeros(trees.rows, np.int32)
    nodes = Nodes.of(trees)
    np.maximum.at(found, nodes.row_of, nodes.depth.astype(np.int32))
    return found


def _counted(
    max_depth: int, chains: Sequence[tuple[Leaning, int, int]], mine: npt.NDArray[np.bool_] | slice, *counts: Ints
) -> Trials:
    """Return the trials of some rows, of `chains` and counts of all: depths, accepted, asked for and verified ones."""
    depths, accepted, wanted, verified = (each[mine] for each in counts)
    rows = chains if isinstance(mine, slice) else [chains[row] for row in np.flatnonzero(mine).tolist()]
    right = _at_least(np.minimum(depths, accepted), max_depth)
    deepest = int(depths.max())
    asked, came = int(wanted.sum()), int(verified.sum())
    if int(depths.min()) == deepest:  # the usual case: rows accepted at one position are those tried at the next
        unseen = [0] * (max_depth - deepest)
        reached = [len(depths), *right[: deepest - 1], *unseen] if deepest else unseen
    else:
        reached = _at_least(np.minimum(depths, accepted + 1), max_depth)
    return Trials(reached, right, asked, came, rows)


def _at_least(values: Ints, most: int) -> list[int]:
    """Return how many values are >= 1, >= 2, ... >= most."""
    counts = np.bincount(values, minlength=most + 1)
    reached: list[int] = np.cumsum(counts[::-1])[::-1][1 : most + 1].tolist()
    return reached
