"""Plans a round: asks the policies, applies their depth to each row, and has them learn.

Every catch-up that was measured after a pause refines C_switch, with any policy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from covey.bandits.policy import LengthPolicy, Outcome, Reason, Situation
from covey.contracts.types import Trees
from covey.planner.decisions import DecisionLog
from covey.planner.drafters.policy import DrafterPolicy, First
from covey.planner.expectations import Expectations
from covey.planner.lessons import Lesson, drafted_in, lesson_of
from covey.planner.offers import Offers
from covey.planner.rows import capped, lay_out, spare
from covey.planner.selection import Selector, VerifyAll
from covey.planner.situations import situation_of
from covey.planner.switching import SwitchCosts
from covey.planner.totals import PlannerTotals
from covey.requests.roster import Roster
from covey.requests.rounds import Choice, Drafted, Plan, Round
from covey.requests.scheduler import Batch

# The longest round with prompts and no drafts, in plain rounds. With STRETCH, decoding rows keep a third of the
# throughput. With ALONE, when no row decodes, a tenth of a pass pays its fixed cost; longer ones would make newcomers
# wait. Drafts do not count: otherwise many of them would leave a prompt no room.
STRETCH, ALONE = 3.0, 10.0
BRIEF = 0.1  # seconds that prompts alone may always take


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
        cap = capped(batch, plan, depth, situation.ceiling, self._max_depth) if situation.shares else ""
        choice = Choice(situation, depth, reason, cap)
        plan = replace(plan, why=assigned.why)
        if reason.word != "explore":  # offers would replace the drafts that exploration pays for
            plan = self._with_offers(plan, batch, situation, depth, budget)
        return replace(
            plan,
            choice=choice,
            divergence=self._drafters.divergence,
            log_q=self.selector.log_q,
        )

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
        return costs.prefill_allowance(max(1, rows), drafts, seconds, longest)

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

    def meanwhile(self, plan: Plan) -> None:
        if self._unlearnt is not None:
            self._learn_pending()
            if plan.choice is not None and plan.choice.situation.shares:
                self.policy.prepare(plan.choice.situation)

    def figures(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Yield metric, labels and value so far. Does not mutate."""
        yield from self.totals.figures()
        yield from self.selector.figures()

    def _learn_pending(self) -> None:
        """Learn from the round that was put off, if any."""
        done, self._unlearnt = self._unlearnt, None
        if done is not None and done.plan.choice is not None:
            self._learn_of(done, done.plan.choice)

    def _learn_of(self, done: Round, choice: Choice) -> None:
        situation = choice.situation
        chosen = Counter(each for each in zip(done.plan.drafter, done.plan.why) if each[0])
        self.totals.draft(chosen)
        if situation.previous == 0 and choice.depth > 0 and done.drafted.catch_up:
            for name, rows, lag in situation.lags():
                self._switch_costs.of(name).observe(lag, rows, done.drafted.catch_up.get(name, 0.0))
        if situation.rows and done.batch.decoding and (situation.shares or self.policy.listens):
            drafters = tuple((name, why, rows) for (name, why), rows in chosen.items())
            self._teach(done, lesson_of(done, choice, self._max_depth), drafters)

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
