"""The default drafter policy, `adaptive`: it chooses the drafters of all rows together, by expected tokens per second.

Each request has its own expected tokens with each drafter (`beliefs`). The policy uses the set of drafters that
together yields most tokens per second (`joint`). Each further drafter is one more call, so rows that gain little by it
share one. Then the length policy chooses the depth, and may choose to decode without drafts. It gets the expected
tokens of these very rows, and uses them if all drafts are verified.

Drafters that do not draft for a row read its text instead of being tried (`read_scheduler`). Rows are assigned again
every eighth round. If something was learnt, a few rows are assigned every other round, while drafters still work.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from covey.planner.drafters import joint
from covey.planner.drafters.beliefs import Array, Beliefs
from covey.planner.drafters.policy import ASKED, Assignment, is_free
from covey.planner.drafters.read_scheduler import ReadScheduler
from covey.planner.expectations import Expectations
from covey.planner.lessons import tried
from covey.requests.active import ActiveRequest
from covey.requests.roster import Roster
from covey.requests.rounds import Judge, Round
from covey.requests.scheduler import Batch

EVERY = 8  # rounds after which many rows are assigned again; a few rows sooner
FEW = 4  # rows that are assigned ahead of the round
TRUST = -0.5  # deviations added to estimates for the choice: pessimistic, since reading explores


class CoveyDrafters:
    """Implements `DrafterPolicy`: chooses for all rows at once."""

    divergence = False
    patient = True

    def __init__(
        self,
        names: Sequence[str],
        max_depth: int,
        depths: Sequence[int],
        expectations: Expectations,
    ) -> None:
        """`depths` are those that the length policy may choose."""
        self._names = list(names)
        self._index = {name: drafter for drafter, name in enumerate(names)}
        self._max_depth = max_depth
        self._depths = np.asarray(depths, np.intp)
        self._expectations = expectations
        self._beliefs = Beliefs(names, max_depth)
        self._reading = ReadScheduler(names, self._beliefs, self._speeds)
        self._assigned: tuple[object, Assignment] = (), Assignment((), ())
        self._ahead: tuple[object, list[int], Assignment] | None = None  # prepared for these rows and drafters
        self._serving: list[int] = []
        self._set: list[int] = []  # the drafters in use
        self._age = EVERY
        self._news = True  # whether anything was learnt since rows were assigned

    def assign(self, batch: Batch, roster: Roster) -> Assignment:
        rows = batch.rows[: batch.decoding]
        serving = self._who_serves(roster)
        key = tuple(active.key for active in rows)
        self._age += 1
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[:2] == (key, serving):
            self._assigned, self._age = (key, ahead[2]), 0
        elif self._due(rows) or serving != self._serving:
            self._beliefs.longest = np.array([roster.positions(name) for name in self._names], np.float64)
            self._anew(rows, serving)
        elif self._assigned[0] != key:
            new = sum(is_free(active) and self._beliefs.of(active).drafter < 0 for active in rows)
            self._assigned = key, self._chosen(rows, serving, self._set if 2 * new < len(rows) else ())
            if new:
                self._age = max(self._age, EVERY // 2)
        return self._assigned[1]

    def prepare(self, batch: Batch, roster: Roster) -> None:
        """Assign the rows of a small batch ahead of the next round, and choose a reader. Many rows are not assigned
        ahead: they share an assignment with new requests, which would get their drafter a round late. It costs 1.5 % of
        throughput on the emulated pair with 16 callers."""
        rows, serving = batch.rows[: batch.decoding], self._who_serves(roster)
        fresh, assigned = self._due(rows, 1), self._assigned[1]
        if fresh and len(rows) <= FEW and serving == self._serving:
            assigned = self._chosen(rows, serving)
            self._ahead = tuple(active.key for active in rows), serving, assigned
        self._reading.seek(batch, assigned, serving, fresh=fresh)

    def judges(self, batch: Batch, assigned: Assignment, roster: Roster) -> tuple[Judge, ...]:
        return self._reading.judges(batch, assigned, self._who_serves(roster), fresh=self._age == 0)

    def learn(self, done: Round) -> None:
        self._reading.learn(done)
        self._expect(done)
        depths = tried(done)
        rows = np.flatnonzero(depths >= 0)
        self._news |= len(rows) > 0 or bool(done.drafted.read)
        if len(rows):
            drafters = np.array([self._index[done.plan.drafter[row]] for row in rows.tolist()], np.int32)
            depths, accepted = depths[rows], done.reply.accepted[rows]
            looked = np.minimum(depths, accepted + 1)
            self._beliefs.drafted(
                [done.batch.rows[row] for row in rows.tolist()], drafters, looked, np.minimum(depths, accepted)
            )

    def _expect(self, done: Round) -> None:
        """Note the round's expected time, which the price of reading is measured against."""
        rows, choice = done.batch.decoding, done.plan.choice
        if choice is None or not (choice.situation.rows and done.emitted) or choice.situation.prefill:
            return
        depth = int(np.where(done.drafted.answered[:rows], done.plan.depth[:rows], 0).max(initial=0))
        if self._expectations.measured and depth <= self._max_depth:  # a request may ask for more than the maximum
            self._reading.expected(self._expectations.of(choice.situation).seconds[depth])

    def _who_serves(self, roster: Roster) -> list[int]:
        return [drafter for drafter, name in enumerate(self._names) if roster.serves(name)]

    def _due(self, rows: Sequence[ActiveRequest], ahead: int = 0) -> bool:
        """Return whether rows must be assigned again `ahead` rounds from now."""
        often = min(EVERY, max(2, len(rows))) if self._news else EVERY
        return self._age + ahead >= often

    def _anew(self, rows: Sequence[ActiveRequest], serving: list[int]) -> None:
        self._set = [each for each in self._set if each in serving]
        key = tuple(active.key for active in rows)
        self._assigned, self._serving, self._age = (key, self._chosen(rows, serving)), serving, 0

    def _chosen(self, rows: Sequence[ActiveRequest], serving: Sequence[int], among: Sequence[int] = ()) -> Assignment:
        """Return each row's drafter, out of all that serve. With `among`, rows keep their drafter, and rows without one
        get one of these."""
        if not serving:
            drafters = tuple(active.request.drafter or self._names[0] for active in rows)
            return Assignment(drafters, tuple("first" if is_free(active) else ASKED for active in rows))
        chosen = [self._index[active.request.drafter or self._names[0]] for active in rows]
        free = [row for row, active in enumerate(rows) if is_free(active)]
        choosing = len(serving) > 1 and not among and bool(free)
        if choosing:
            open_rows = [rows[row] for row in free]
            self._beliefs.take_judgements(open_rows)
            self._beliefs.look_around(open_rows)
        cautious, likely = self._beliefs.expected(rows, TRUST, 0.0)
        if len(serving) == 1:
            for row in free:
                chosen[row] = serving[0]
        elif among:
            for row in free:
                chosen[row] = self._beliefs.of(rows[row]).drafter
            lost = [row for row in free if chosen[row] not in serving]  # new requests, or their drafter failed
            if lost:
                for row, best in zip(lost, cautious[lost][:, among, -1].argmax(axis=1).tolist()):
                    chosen[row] = among[best]
        elif choosing:
            asked = [row for row, active in enumerate(rows) if not is_free(active)]
            drafting = [row for row in asked if chosen[row] in serving and rows[row].request.speculation != "off"]
            named = [chosen[row] for row in drafting]
            others = len(asked) - len(drafting) + likely[drafting, named].sum(axis=0)
            for row, drafter in zip(free, self._joint(serving, cautious[free], named, others)):
                chosen[row] = drafter
        why = [ASKED] * len(rows)
        for row in free:
            belief = self._beliefs.of(rows[row])
            if len(serving) == 1:
                why[row] = "only"
            elif chosen[row] == belief.drafter:
                why[row] = belief.why
            elif belief.drafter >= 0:
                why[row] = "switch"
            else:
                why[row] = "prompt" if self._beliefs.knows_prompt(rows[row]) else "prior"
            belief.drafter, belief.why = chosen[row], why[row]
        self._news = False
        mine = np.arange(len(rows)), chosen
        doubt = (1.0 - cautious[mine] / likely[mine]) / -TRUST
        return Assignment(tuple(self._names[each] for each in chosen), tuple(why), cautious[mine], doubt)

    def _joint(self, serving: Sequence[int], tokens: Array, named: Sequence[int], others: Array) -> list[int]:
        """Return the drafters of rows that name none and are expected to emit `tokens`. `named` are the drafters of
        other rows, which draft anyway and emit `others`, by depth."""
        tokens = tokens[:, serving][:, :, self._depths]
        count, expectations = len(tokens) + len(named), self._expectations
        chosen, _ = joint.best_set(
            joint.Prospects(
                tokens,
                others[self._depths],
                expectations.without_drafts(count)[self._depths],
                np.stack([expectations.costs.drafting(self._names[each], count)[:, self._depths] for each in serving]),
                {serving.index(each): named.count(each) for each in set(named)},
                expectations.costs.side_by_side,
            )
        )
        self._set = [serving[each] for each in chosen]
        return [serving[chosen[each]] for each in tokens[:, chosen, -1].argmax(axis=1).tolist()]

    def _speeds(self, rows: int, *tokens: Array) -> list[Array]:
        """Return tokens per second at the best depth as [rows, drafters], if each drafter drafted for all `rows` rows.
        There is one answer for each array of a round's tokens, [rows, drafters, depths from 0]."""
        drafting = np.stack([self._expectations.costs.drafting(name, rows)[-1] for name in self._names])
        seconds = (self._expectations.without_drafts(rows) + drafting)[:, self._depths]
        return [(rows * each[:, :, self._depths] / seconds).max(axis=2) for each in tokens]
