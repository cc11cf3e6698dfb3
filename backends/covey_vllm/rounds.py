"""The round loop turned inside out: vLLM's engine verifies, and calls this module between two steps.

    step i              vLLM verifies the drafts of call i - 1, reads prompts, samples
    call i, follow      which request each row is                                      (texts)
            learn       the round that call i - 1 began has ended: its cost and its tokens     (planner)
            plan        depth and drafter of each row that decodes
            draft       one call per drafter in use
            select      drop drafts that are not worth verifying

vLLM's work between two calls counts as the round's pass. The pass may hold more than the planned rows, above all
prompts. This shows afterwards, as rows that were not in the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
import numpy.typing as npt

from covey.bandits.policy import Situation
from covey.contracts.ports import Clock, Drafter
from covey.contracts.types import NO_FLOATS, TargetReply, Trees
from covey.loop.channel import Channel
from covey.loop.drafting import Drafting
from covey.planner.planner import Planner
from covey.process.worker import Thread, Worker
from covey.requests.active import ActiveRequest
from covey.requests.roster import Roster
from covey.requests.rounds import Choice, Drafted, Plan, Round, Times
from covey.requests.scheduler import Batch
from covey.wire.ledger import new_origin
from covey_vllm.texts import Row

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Begun:
    """A round whose drafts vLLM has and has not answered."""

    batch: Batch
    plan: Plan
    drafted: Drafted
    kept: Trees
    started: float
    planned: float
    selected: float

    def of(self, rows: Mask) -> Begun:
        """Return the same round with only these rows of its batch; the others had no part in the pass."""
        if rows.all():
            return self
        some = rows.nonzero()[0].tolist()
        batch, plan, drafted = self.batch, self.plan, self.drafted
        drafter = tuple(plan.drafter[row] for row in some)
        return replace(
            self,
            batch=replace(batch, rows=[batch.rows[row] for row in some], chunk=batch.chunk[rows], decoding=len(some)),
            plan=replace(
                plan,
                depth=plan.depth[rows],
                width=plan.width[rows],
                drafter=drafter,
                why=tuple(plan.why[row] for row in some) if plan.why else (),
                choice=None if plan.choice is None else _choice(plan.choice, len(some), rows),
            ),
            drafted=replace(
                drafted, trees=_rows(drafted.trees, rows), answered=drafted.answered[rows], drafter=drafter
            ),
            kept=_rows(self.kept, rows),
        )


class Rounds:
    """Owns the channels to the drafters, their roster, and the round of vLLM's current step."""

    def __init__(
        self,
        planner: Planner,
        drafters: Mapping[str, Drafter],
        clock: Clock,
        *,
        budget: int,
        deadline: float,
        ends: Collection[int] = (),
        worker: Callable[[str], Worker] = Thread,
        caller: str = "",
        observe: Callable[[Round], object] = lambda _done: None,
        keep: Collection[str] = (),
    ) -> None:
        """`budget` is the most tokens of a step. `ends` are tokens that usually end a request, after which nothing is
        drafted. `worker` and `caller` are as for `covey.loop.engine.Engine`. `observe` gets each finished round. `keep`
        are drafters that keep the text of ended requests, even if others drafted for those."""
        self.planner = planner
        self.roster = Roster(drafters, clock)
        self._clock = clock
        self._budget = budget
        self._ends = frozenset(ends)
        self._observe = observe
        self._keep = tuple(keep)
        origin, sequence = new_origin(caller), count(1)
        channels = {
            name: Channel(name, drafter, self.roster, clock, None, origin, sequence, worker)
            for name, drafter in drafters.items()
        }
        self._drafting = Drafting(channels, self.roster, clock, deadline)
        self._begun: Begun | None = None

    def next(self, rows: Sequence[Row], started: float) -> list[list[int]]:
        """Return drafts for the next step, by row. `started` is the time of the call."""
        self._learn(rows, started)
        places = [place for place, row in enumerate(rows) if self._goes_on(row)]
        drafts: list[list[int]] = [[] for _ in rows]
        if not places:
            return drafts
        actives = [active for place in places if (active := rows[place].active) is not None]
        batch = Batch(actives, np.ones(len(actives), np.int32), (), (), len(actives), started)
        self._drafting.settle()
        plan = self.planner.plan(batch, self.roster, self._budget)
        planned = self._clock.now()
        drafted = self._drafting.draft(batch, plan, self.planner.meanwhile)
        kept = self.planner.select(batch, drafted, self._budget)
        selected = self._clock.now()
        self._begun = Begun(batch, plan, drafted, kept, started, planned, selected)
        offsets, tokens = kept.offsets.tolist(), kept.tokens.tolist()
        for row, place in enumerate(places):
            drafts[place] = tokens[offsets[row] : offsets[row + 1]]
        return drafts

    def forget(self, requests: Sequence[ActiveRequest]) -> None:
        """Forget ended requests. Before that, drafters in `keep` are told the rest of their texts."""
        for name in self._keep if requests else ():
            untold = [active for active in requests if active.seen.get(name, 0) < active.num_tokens]
            self._drafting.settle()
            self._drafting.tell(name, untold)
        for active in requests:
            self._drafting.forget(active)

    def _goes_on(self, row: Row) -> bool:
        """Return whether the next step is expected to decode the row."""
        return row.active is not None and bool(row.sampled) and row.sampled[-1] not in self._ends

    def _learn(self, rows: Sequence[Row], now: float) -> None:
        begun, self._begun = self._begun, None
        if begun is None:
            return
        came = {row.active.key: row.sampled for row in rows if row.active is not None and row.followed}
        present = np.array([active.key in came for active in begun.batch.rows], np.bool_)
        if not present.any():  # all have ended, and vLLM may have been idle since
            return
        planned = {active.key for active in begun.batch.rows}
        unplanned = sum(
            row.read or len(row.sampled) for row in rows if row.active is None or row.active.key not in planned
        )
        begun = begun.of(present)
        batch, kept = begun.batch, begun.kept
        sampled = [came[active.key] for active in batch.rows]
        accepted = [min(len(new) - 1, size) for new, size in zip(sampled, kept.sizes.tolist())]
        prefill = min(unplanned, max(1, self._budget - len(sampled) - len(kept.tokens))) if unplanned else 0
        verify = max(0.0, now - begun.selected)
        times = Times(begun.planned - begun.started, begun.selected - begun.planned, verify, 0.0)
        done = Round(
            replace(batch, chunk=np.append(batch.chunk, np.int32(prefill))) if prefill else batch,
            _with_prefill(begun.plan, prefill) if prefill else begun.plan,
            begun.drafted,
            kept,
            _reply(sampled, accepted, times.verify),
            sum(map(len, sampled)),
            times,
            waiting=0,
            running=len(rows),
            preempted=0,
        )
        self.planner.learn(done)
        self._observe(done)


def _reply(sampled: Sequence[Sequence[int]], accepted: Sequence[int], seconds: float) -> TargetReply:
    """Return the reply that a target of Covey's would have given."""
    none = np.zeros(len(sampled), np.int32)
    return TargetReply(
        status=none,
        num_cached_tokens=none,
        reused=none,
        accepted=np.asarray(accepted, np.int32),
        offsets=np.cumsum([0, *map(len, sampled)]).astype(np.int32),
        tokens=np.asarray([token for new in sampled for token in new], np.int32),
        logprobs=NO_FLOATS,
        free_blocks=0,
        total_blocks=0,
        epoch=0,
        seconds=seconds,
    )


def _with_prefill(plan: Plan, prefill: int) -> Plan:
    """Return the plan with its situation corrected for the prompts that were in the pass."""
    choice = plan.choice
    if choice is None:
        return plan
    return replace(plan, choice=replace(choice, situation=replace(choice.situation, prefill=prefill)))


def _choice(choice: Choice, rows: int, present: Mask) -> Choice:
    """Return the choice with its situation corrected for the rows that were not present. Shares are scaled, which is
    exact if all drafters lose the same share of rows."""
    situation, share = choice.situation, rows / len(present)
    shares = tuple((name, max(1, round(each * share))) for name, each in situation.shares)
    drafts = tuple(round(each * share) for each in situation.drafts)
    sampled = tuple(min(most, round(each * share)) for each, (_, most) in zip(situation.sampled, shares))
    changed: Situation = replace(situation, rows=rows, shares=shares, drafts=drafts, sampled=sampled)
    return replace(choice, situation=changed)


def _rows(trees: Trees, rows: Mask) -> Trees:
    """Return the trees of only these rows."""
    kept = trees.only(rows)
    return replace(kept, offsets=np.append(0, kept.sizes[rows].cumsum()).astype(np.int32))
