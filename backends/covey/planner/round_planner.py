"""Plans a round: asks the policies, applies their depth to each row, and has them learn.

Every catch-up that was measured after a pause refines C_switch, with any policy.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from covey.bandits.policy import Kind, LengthPolicy, Outcome, Reason, Situation
from covey.contracts.types import LOOKUP, Trees
from covey.planner.decisions import DecisionLog
from covey.planner.drafters.policy import Assignment, DrafterPolicy, First
from covey.planner.expectations import Expectations
from covey.planner.lessons import Lesson, drafted_in, lesson_of
from covey.planner.offers import Offers
from covey.planner.rows import capped, draft_tokens, lay_out, spare
from covey.planner.selection import Selector, VerifyAll
from covey.planner.switching import SwitchCosts
from covey.requests.roster import Roster
from covey.requests.rounds import Choice, Drafted, Plan, Round
from covey.requests.scheduler import Batch

# The longest round with prompts and no drafts, in plain rounds. With STRETCH, decoding rows keep a third of the
# throughput. With ALONE, when no row decodes, a tenth of a pass pays its fixed cost; longer ones would make newcomers
# wait. The time of drafts is left out: else a prompt would find no room beside many drafts.
STRETCH, ALONE = 3.0, 10.0
BRIEF = 0.1  # seconds that prompts alone may always take


class PlannerTotals:
    """Counts how often depths and drafters were chosen, why, and at what expected and real cost. The engine's thread
    adds once a round, any thread may read."""

    def __init__(self) -> None:
        self._rounds: Counter[tuple[int, str]] = Counter()
        self._drafters: Counter[tuple[str, str]] = Counter()
        self._switches = {"on": 0, "off": 0}
        self._drafts = False  # in the last counted round
        self._predicted = 0.0
        self._observed = 0.0
        self._lost = 0.0

    def add(
        self, depth: int, reason: Reason, *, ceiling: int, drafted: bool, tokens: int, seconds: float | None
    ) -> None:
        """Count a choice. `seconds` is None if the round does not show its cost."""
        self._rounds[depth, reason.word] += 1
        if drafted != self._drafts:
            self._drafts = drafted
            self._switches["on" if drafted else "off"] += 1
        predicted = reason.predicted
        if depth >= len(predicted) or predicted[depth] == math.inf:
            return
        self._lost += tokens * (predicted[depth] - min(predicted[: ceiling + 1]))
        if seconds is not None:
            self._predicted += tokens * predicted[depth]
            self._observed += seconds

    def draft(self, rows: Mapping[tuple[str, str], int]) -> None:
        """Count the rows of a round, by drafter and reason."""
        self._drafters.update(rows)

    def figures(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Yield metric, labels and value so far. Does not mutate."""
        for (depth, why), rounds in list(self._rounds.items()):
            yield "covey_planner_rounds_total", {"depth": str(depth), "why": why}, rounds
        for (drafter, why), rows in list(self._drafters.items()):
            yield "covey_drafter_chosen_total", {"drafter": drafter, "why": why}, rows
        for to, switches in self._switches.items():
            yield "covey_planner_switches_total", {"to": to}, switches
        yield "covey_planner_predicted_seconds_total", {}, self._predicted
        yield "covey_planner_observed_seconds_total", {}, self._observed
        yield "covey_planner_regret_seconds_total", {}, self._lost


def situation_of(
    batch: Batch, assigned: Assignment, roster: Roster, budget: int, previous: int, *, max_depth: int, width: int
) -> Situation:
    """Return the batch, with its assigned drafters, as the length policy sees it. It has no `shares` if no row leaves
    its depth to the policy, and neither shares nor rows if there are no drafters."""
    drafters = assigned.drafters
    if not roster.names:
        return Situation(0, 0)
    rows = batch.decoding
    counts: dict[str, int] = {}
    missed: dict[str, int] = {}
    sampled: dict[str, int] = {}
    shifts: dict[Kind, list[float]] = {}
    lag = 0
    pairs = [(active, name, roster.drafts(name, coupled=active.coupled)) for active, name in zip(batch.rows, drafters)]
    mine = [
        (active, name, serves)
        for active, name, serves in pairs
        if active.request.speculation == "auto" and active.num_tokens < roster.positions(name)
    ]
    served = any(serves for _active, _name, serves in mine)  # some row's drafter is available
    alike = all(serves for _active, _name, serves in mine) and len(mine) == len(pairs)  # all draft the policy's chain
    for active, name, serves in mine:
        if served and not serves:
            continue  # it decodes plainly
        counts[name] = counts.get(name, 0) + 1
        own = roster.comes_with_pass(name, coupled=active.coupled)
        unseen = active.num_tokens - (active.seen_by_own_head if own else active.seen.get(name, 0))
        lag = max(lag, unseen)
        missed[name] = missed.get(name, 0) + unseen
        random = not active.request.sampling.greedy
        sampled[name] = sampled.get(name, 0) + random
        shifts.setdefault((name, random), []).append(active.leaning.shift)
    ceiling = max(0, min(max_depth, spare(batch, budget))) if served else 0
    prefill = int(batch.chunk[rows:].sum()) if len(batch.rows) > rows else 0
    if not counts:
        return Situation(rows, 0, previous, prefill=prefill)
    drafts: tuple[int, ...] = ()
    if not alike or width > 1:  # tokens that all rows are asked to draft, by the policy's depth
        drafts = draft_tokens(batch, drafters, roster, budget, max_depth, width)
    return Situation(
        rows=rows,
        ceiling=ceiling,
        previous=previous,
        lag=lag,
        shares=tuple(counts.items()),
        prefill=prefill,
        missed=tuple(missed.values()),
        drafts=drafts,
        served=served,
        width=width,
        sampled=tuple(sampled.values()),
        joining=batch.joining,
        shifts=tuple(
            tuple(shifts[name, random]) for name in counts for random in (False, True) if (name, random) in shifts
        ),
    )


class RoundPlanner:
    """Implements `Planner`. Each policy owns what it learns. Any thread may read `decisions` and `totals`; the rest is
    for the engine's thread."""

    def __init__(
        self,
        policy: LengthPolicy,
        *,
        max_depth: int,
        width: int = 1,
        switch_costs: SwitchCosts | None = None,
        selector: Selector | None = None,
        drafters: DrafterPolicy | None = None,
        expectations: Expectations | None = None,
    ) -> None:
        self.policy = policy
        self.decisions = DecisionLog(max_depth + 1)
        self.totals = PlannerTotals()
        self._max_depth = max_depth
        self._width = width
        self._switch_costs = switch_costs or SwitchCosts()
        self.selector = selector or VerifyAll()
        self._drafters = drafters or First()
        self._expectations = expectations
        self._previous = 0  # the deepest draft of the last round that decoded; 0 if the policy chose no drafts
        self._unlearnt: Round | None = None
        self._offers = Offers()
        self._next: Choice | None = None  # by which the target's own head drafts for the next round
        # Seconds for which the target's own head drafted, and read, at the end of the last round.
        self._drafted_before = (0.0, 0.0)
        self._reads_on = False  # whether the target's own head has read only a part of what it missed

    @property
    def chains(self) -> bool:
        """Return whether every draft is a chain that is verified whole, and requests keep their drafter."""
        whole = isinstance(self.selector, VerifyAll) and isinstance(self._drafters, First)
        return whole and self._width == 1 and self.policy.width is None

    def plan(self, batch: Batch, roster: Roster, budget: int) -> Plan:
        """Plan a round. The policy is asked only if some row leaves the depth to it."""
        assigned = self._drafters.assign(batch, roster)
        whose = assigned.drafters
        situation = situation_of(
            batch, assigned, roster, budget, self._previous, max_depth=self._max_depth, width=self._width
        )
        depth, reason = 0, Reason("")
        if situation.shares:
            depth, reason = self.policy.choose(situation), self.policy.reason
        width = self._width if self.policy.width is None else self.policy.width
        plan = lay_out(batch, whose, roster, budget, depth, width, self._max_depth)
        cap = capped(batch, plan, depth, situation.ceiling, self._max_depth) if situation.served else ""
        choice = Choice(situation, depth, reason, cap)
        plan = replace(plan, why=assigned.why)
        if roster.own_head:
            plan, choice = self._one_round_later(plan, choice, batch, roster, budget)
            depth, reason = choice.depth, choice.reason
        if reason.word != "explore":  # offers would replace the drafts that exploration pays for
            plan = self._with_offers(plan, batch, situation, depth, budget)
            if len(plan.next_depth) and LOOKUP in plan.drafter:  # its text will most likely offer drafts again
                plan = replace(plan, next_depth=plan.next_depth * [name != LOOKUP for name in plan.drafter])
        return replace(
            plan,
            choice=choice,
            divergence=self._drafters.divergence,
            log_q=self.selector.log_q,
        )

    def _one_round_later(
        self, plan: Plan, choice: Choice, batch: Batch, roster: Roster, budget: int
    ) -> tuple[Plan, Choice]:
        """Return the plan and its choice where the target's own head drafts. Its rows verify the drafts that the last
        round's choice asked for. The depths of the new choice are for the drafts of the next round."""
        rows_and_names = zip(batch.rows, plan.drafter)
        mine = [roster.comes_with_pass(name, coupled=active.coupled) for active, name in rows_and_names]
        last, self._next = self._next, choice if any(mine) else None
        if not any(mine):
            return plan, choice
        most = max(0, spare(batch, budget))
        limits = [min(active.room - 1, most) for active in batch.rows]
        have = [
            min(len(active.next_drafts), limit) if own else int(depth)
            for active, own, limit, depth in zip(batch.rows, mine, limits, plan.depth.tolist())
        ]
        plan = replace(plan, depth=np.array(have, np.int32), next_depth=np.where(mine, plan.depth, 0).astype(np.int32))
        if last is None or not plan.depth.any():
            return plan, choice
        rows = batch.decoding
        whole = all(mine[:rows]) and (last.situation.rows, last.situation.prefill) == (rows, choice.situation.prefill)
        whole = whole and all(depth >= min(last.depth, limit) for depth, limit in zip(have[:rows], limits))
        return replace(plan, mixed=not whole), last

    def _with_offers(self, plan: Plan, batch: Batch, situation: Situation, depth: int, budget: int) -> Plan:
        """Return the plan with offers from texts, if the cost of drafts has been measured."""
        rows, expectations = batch.rows[: batch.decoding], self._expectations
        if expectations is None or not expectations.measured or all(active.offer is None for active in rows):
            return plan
        draft_cost, planned = expectations.draft_cost(len(rows)), 0.0
        if depth:
            planned = expectations.gain(situation, depth)
        value = expectations.speed(len(rows) + batch.joining) / expectations.speed(len(rows)) if batch.joining else 1.0
        return self._offers.taken(plan, rows, draft_cost, planned, max(0, spare(batch, budget)), max(1.0, value))

    def select(self, batch: Batch, drafted: Drafted, budget: int) -> Trees:
        return self.selector.select(batch, drafted, budget)

    def prefill_allowance(self, rows: int, drafts: float, tpot: float, seconds: float) -> int | None:
        if self._expectations is None or not self._expectations.measured:
            return None
        costs, plain = self._expectations.costs, self._expectations.plain(max(1, rows))
        if self.selector.yields and plain <= tpot:
            drafts = 0.0
        longest = STRETCH * plain - costs.overhead(rows) if rows else max(BRIEF, ALONE * plain)
        return costs.prompt_tokens_within(max(1, rows), drafts, seconds, longest)

    def learn(self, done: Round) -> None:
        """Learn from a round. With a patient length policy, that is put off until the next round's drafters work."""
        self._learn_pending()
        self._offers.learn(done)
        if done.plan.choice is not None:
            self._drafters.learn(done)
        drafted = drafted_in(done)
        if done.batch.decoding:
            # Depths that requests ask for are not the policy's choice.
            own = done.plan.choice is not None and done.plan.choice.depth > 0
            self._previous = int(done.plan.depth[: done.batch.decoding].max()) if drafted and own else 0
        self._unlearnt = done
        if not (self.policy.patient and drafted and done.running):
            self._learn_pending()

    def meanwhile(self) -> None:
        self._learn_pending()

    def figures(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Yield metric, labels and value so far. Does not mutate."""
        yield from self.totals.figures()
        yield from self.selector.figures()

    def _learn_pending(self) -> None:
        """Learn from the round that was put off, if any."""
        done, self._unlearnt = self._unlearnt, None
        if done is None:
            return
        if done.plan.choice is not None:
            self._learn_of(done, done.plan.choice)
        self._drafted_before = done.reply.draft_seconds, done.reply.catch_up_seconds

    def _learn_of(self, done: Round, choice: Choice) -> None:
        situation = choice.situation
        chosen = Counter(each for each in zip(done.plan.drafter, done.plan.why) if each[0])
        self.totals.draft(chosen)
        if situation.previous == 0 and choice.depth > 0:
            caught_up = self._caught_up(done)
            for name, rows, lag in situation.lags() if caught_up else ():
                self._switch_costs.of(name).observe(lag, rows, caught_up.get(name, 0.0))
        if situation.rows and done.batch.decoding and (situation.shares or self.policy.listens):
            drafters = tuple((name, why, rows) for (name, why), rows in chosen.items())
            self._teach(done, lesson_of(done, choice, self._max_depth, self._drafted_before), drafters)

    def _caught_up(self, done: Round) -> Mapping[str, float]:
        """Return the seconds that each drafter took to read what it had missed when the round's choice was made. Return
        nothing if the round does not show them. The target's own head shows them if it begins anew in all rows and
        drafts for all of them at once; otherwise it has read only a part."""
        asked = done.plan.next_depth > 0
        if not asked.any():
            return done.drafted.catch_up
        drafted = np.diff(done.reply.draft_offsets) > 0
        begins, self._reads_on = not self._reads_on, len(drafted) != len(asked) or bool((asked & ~drafted).any())
        if done.plan.depth.any() or self._reads_on or not begins:
            return {}
        return {done.plan.drafter[int(asked.argmax())]: done.reply.catch_up_seconds}

    def _teach(self, done: Round, lesson: Lesson, drafters: tuple[tuple[str, str, int], ...]) -> None:
        choice, outcome = lesson.choice, lesson.outcome
        situation = choice.situation
        if outcome is not None:
            self.selector.learn(done, outcome)
            if not self.policy.teaches and self._expectations is not None:
                _show(lesson, outcome, self._expectations)
            _show(lesson, outcome, self.policy)
        if not situation.shares:
            return
        self.totals.add(
            lesson.depth,
            choice.reason,
            ceiling=situation.ceiling,
            drafted=lesson.drafted,
            tokens=lesson.tokens,
            seconds=lesson.seconds if lesson.whole else None,
        )
        self.decisions.add(lesson, drafters)


def _show(lesson: Lesson, outcome: Outcome, learner: Expectations | LengthPolicy) -> None:
    """Let a learner learn the lesson, or overhear a round that does not show the cost of its depth."""
    situation = lesson.choice.situation
    if lesson.whole:
        learner.update(situation, lesson.depth, outcome)
    else:
        learner.overhear(situation, lesson.played, outcome)
