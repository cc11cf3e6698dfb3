"""`covey`: the drafters of all rows together, by expected tokens per second.

    value(S) = max over depths of  sum over rows of max over i in S of tokens(row, i)  /  seconds(rows by drafter)

tokens are believed of each request (`beliefs`), less what it costs to move it: the catch-up of a drafter that has not
seen its text, spread over the rounds that the request may still have. S grows from the best single drafter by the one
that gains most, while any gains: each further drafter is one more call, and rows that gain little by it share one.
Arms of all kinds are compared so, by what a round of theirs takes and brings. Decoding without drafts is the length
policy's to choose, which is asked afterwards, for the mix that comes of this.

What other drafters would have done is read, not tried: on a bank that a fixed share of all time goes into, drafters
read what others drafted, those first that may be better than the ones in use, and then whoever has not read for
longest. A request's prompt is read by those that do not draft where nothing like it was seen yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from covey.active import ActiveRequest
from covey.bandits.length import Outcome, Situation
from covey.planner.drafters.beliefs import Array, Beliefs
from covey.planner.drafters.policy import ASKED, Assignment
from covey.planner.expectations import Expectations
from covey.planner.lessons import read_for_long
from covey.planner.switching import SwitchCosts
from covey.roster import Roster
from covey.rounds import Reader, Round
from covey.scheduler import Batch
from covey.types import RowStatus, Rule

EVERY = 8  # rounds after which many rows are assigned anew, and a reader is sought; a few rows sooner
SHARE = 0.02  # of all time may go into reading
START, DEEPEST = 1.0, -0.1  # seconds in the bank at the start and at most, and the debt in which no prompt is read
CHUNK = 16  # tokens of a row that are worth a call
MOST_ROWS, MOST_TOKENS = 4, 256  # of a call that reads: neighbours learn from one another
SHAPE = 16  # calls read multiples of so many tokens: a library prepares for every new shape, and few are used again
WINDOW = 32  # last tokens of a text that are judged
PROMPT, PROMPTS = 32, 2  # last tokens of a prompt that are judged, and prompts of a call
PROMPT_TOKENS = 512  # of a call that reads prompts; longer ones are read by nobody who does not draft
PROMPTERS = 8  # drafters that read a prompt
SURE = 10.0  # rounds of neighbours, whoever drafted, after which a prompt is not read: hits say more
HOPE = 1.5  # deviations by which a drafter may be better than it is believed, and is worth reading
# Deviations by which it is held for better when it is chosen: for worse where it can be known by reading, for better
# where it must be tried, under the rejection rule.
READABLE, TRIED = -0.5, 0.5
FULL = 0.25  # seconds in the bank from which on a reader is sought every round, be it who has not read for longest
LONGEST, SHORTEST = 32.0, 4.0  # rounds over which a catch-up is spread
GAIN = 1.01  # that a further drafter must bring: its rows' catch-up and its process' share of the cores are not in it


@dataclass(slots=True)
class _Reads:
    """One drafter's reading."""

    seconds: float = 0.002  # that a call takes, as seen lately
    round: int = 0  # of its last
    prompts: bool = True  # whether it says anything of prompts
    prompt: ActiveRequest | None = None  # one whose prompt it was to judge last


class CoveyDrafters:
    """Implements `DrafterPolicy`."""

    divergence = False

    def __init__(
        self,
        names: Sequence[str],
        max_depth: int,
        depths: Sequence[int],
        switch_costs: SwitchCosts,
        expectations: Expectations,
        *,
        teaches: bool,
    ) -> None:
        """`depths` that the length policy may choose. `teaches`: nobody else teaches the expectations."""
        self._names = list(names)
        self._depths = np.asarray(depths, np.intp)
        self._switch_costs = switch_costs
        self._expectations = expectations
        self._teaches = teaches
        self._beliefs = Beliefs(names, max_depth)
        self._reads = [_Reads() for _ in names]
        self._assigned: tuple[object, Assignment] = (), Assignment((), ())
        self._serving: list[int] = []
        self._set: list[int] = []  # of the drafters in use
        self._age = EVERY
        self._round = 0
        self._bank = START
        self._speed = 0.0  # tokens per second of the last assignment

    def assign(self, batch: Batch, roster: Roster) -> Assignment:
        rows = batch.rows[: batch.decoding]
        serving = [index for index, name in enumerate(self._names) if roster.serves(name)]
        key = tuple(active.key for active in rows)
        self._age += 1
        if self._age >= min(EVERY, max(2, len(rows))) or serving != self._serving:
            self._set = [each for each in self._set if each in serving]
            self._assigned, self._serving, self._age = (key, self._chosen(rows, serving)), serving, 0
        elif self._assigned[0] != key:
            new = sum(self._beliefs.of(active).drafter < 0 for active in rows)
            self._assigned = key, self._chosen(rows, serving, self._set if 2 * new < len(rows) else ())
            if new:
                self._age = max(self._age, EVERY // 2)
        return self._assigned[1]

    def readers(self, batch: Batch, assigned: Assignment, roster: Roster) -> tuple[Reader, ...]:
        """Those for prompts, else one that catches up."""
        if len(self._names) < 2:
            return ()
        serving = [index for index, name in enumerate(self._names) if roster.serves(name)]
        prompts = self._for_prompts(batch, serving)
        if prompts or self._bank <= 0.0 or (self._age and self._bank < FULL):
            return prompts
        return self._catching_up(batch, assigned, serving)

    def learn(self, done: Round) -> None:
        self._round += 1
        self._bank = min(START, self._bank + SHARE * done.times.whole)
        for name, seconds in done.drafted.read.items():
            self._bank -= seconds
            reads = self._reads[self._names.index(name)]
            reads.seconds += 0.2 * (seconds - reads.seconds)
            heard = reads.prompt.heard.get(name) if reads.prompt is not None else None
            if heard is not None:
                reads.prompts = heard.prompt_tokens > 0 or not heard.read  # for want of room
                reads.prompt = None
        plan, reply, rows = done.plan, done.reply, done.batch.decoding
        asked, accepted, answered = plan.depth[:rows].tolist(), reply.accepted.tolist(), done.drafted.answered.tolist()
        kept, proposed, status = done.kept.sizes.tolist(), done.drafted.trees.sizes.tolist(), reply.status.tolist()
        reading = read_for_long(done)
        for row, active in enumerate(done.batch.rows[:rows]):
            if reading and not proposed[row]:
                continue
            if asked[row] and answered[row] and status[row] == RowStatus.OK:
                # What was not worth verifying says nothing; what the drafter did not propose says that it had nothing.
                depth = min(asked[row], kept[row]) if kept[row] < proposed[row] else asked[row]
                drafter = self._names.index(plan.drafter[row])
                self._beliefs.drafted(active, drafter, min(depth, accepted[row] + 1), min(depth, accepted[row]))

    def hear(self, situation: Situation, depth: int, outcome: Outcome) -> None:
        if self._teaches and situation.rows:
            self._expectations.overhear(situation, depth, outcome, usual=True)

    def _chosen(self, rows: Sequence[ActiveRequest], serving: Sequence[int], among: Sequence[int] = ()) -> Assignment:
        """Of all that serve, or for rows that have none yet among these."""
        if not serving:
            first = self._names[0] if self._names else ""
            drafters = tuple(active.request.drafter or first for active in rows)
            return Assignment(drafters, tuple(ASKED if active.request.drafter else "first" for active in rows))
        fixed = [self._names.index(active.request.drafter) if active.request.drafter else -1 for active in rows]
        free = [row for row, drafter in enumerate(fixed) if drafter < 0]
        if len(serving) == 1:
            for row in free:
                fixed[row] = serving[0]
        elif among:
            for row in free:
                belief = self._beliefs.of(rows[row])
                if belief.drafter not in serving:  # it is new, or was away while its drafter failed
                    deepest = self._beliefs.expected([rows[row]], self._trust(rows[row : row + 1]))[0, :, -1]
                    fixed[row] = max(among, key=deepest.tolist().__getitem__)
                else:
                    fixed[row] = belief.drafter
        elif free:
            for active in rows:
                self._beliefs.hear(active)
            self._beliefs.look_around([rows[row] for row in free])
            chosen = self._joint([rows[row] for row in free], serving, [each for each in fixed if each >= 0])
            for row, drafter in zip(free, chosen):
                fixed[row] = drafter
        why = [ASKED] * len(rows)
        for row in free:
            belief = self._beliefs.of(rows[row])
            if len(serving) == 1:
                why[row] = "only"
            elif fixed[row] == belief.drafter:
                why[row] = belief.why
            else:
                why[row] = "switch" if belief.drafter >= 0 else "prompt" if any(belief.prompt_heard) else "prior"
            belief.drafter, belief.why = fixed[row], why[row]
        return Assignment(tuple(self._names[each] for each in fixed), tuple(why))

    def _joint(self, rows: Sequence[ActiveRequest], serving: Sequence[int], fixed: Sequence[int]) -> list[int]:
        """The drafters of rows that leave it open; those of the others are asked anyway."""
        tokens = self._beliefs.expected(rows, self._trust(rows))[:, serving][
            :, :, self._depths
        ]  # [rows, serving, depths]
        if self._speed:
            tokens -= self._moves(rows, serving, tokens[:, :, -1])[:, :, None] * (self._depths > 0)
        count = len(rows) + len(fixed)
        base = self._expectations.without_drafts(count)[self._depths]
        in_use = {serving.index(each): fixed.count(each) for each in set(fixed) if each in serving}
        chosen = list(in_use)
        if not chosen:
            drafts = np.stack([self._expectations.drafting(self._names[each], count)[self._depths] for each in serving])
            emitted = tokens.sum(axis=0)
            speeds = (emitted / (base + drafts)).max(axis=1)
            # Where plain decoding is best all drafters are as good, but for what they bring at the greatest depth.
            chosen = [int(np.lexsort((emitted[:, -1], speeds))[-1])]
        mine = tokens[:, chosen].max(axis=1)
        most = self._value(mine, base, chosen, tokens, serving, in_use)
        while len(chosen) < len(serving) and len(rows) + len(in_use) > 1:
            values = {
                each: self._value(np.maximum(mine, tokens[:, each]), base, [*chosen, each], tokens, serving, in_use)
                for each in range(len(serving))
                if each not in chosen
            }
            best = max(values, key=values.__getitem__)
            if values[best] <= GAIN * most:
                break
            most = values[best]
            chosen.append(best)
            mine = np.maximum(mine, tokens[:, best])
        self._speed, self._set = most, [serving[each] for each in chosen]
        return [serving[chosen[each]] for each in tokens[:, chosen, -1].argmax(axis=1).tolist()]

    def _trust(self, rows: Sequence[ActiveRequest]) -> Array:
        coupled = [active.request.sampling.rule is Rule.COUPLED for active in rows]
        return np.where(coupled, READABLE, TRIED)

    def _value(
        self,
        mine: Array,
        base: Array,
        chosen: Sequence[int],
        tokens: Array,
        serving: Sequence[int],
        in_use: Mapping[int, int],
    ) -> float:
        """Tokens per second of the best depth."""
        whose = tokens[:, chosen, -1].argmax(axis=1)
        counts = np.bincount(whose, minlength=len(chosen)).tolist()
        drafts = [
            self._expectations.drafting(self._names[serving[each]], count + in_use.get(each, 0))[self._depths]
            for each, count in zip(chosen, counts)
            if count or each in in_use
        ]
        return float((mine.sum(axis=0) / (base + self._expectations.side_by_side(drafts))).max())

    def _moves(self, rows: Sequence[ActiveRequest], serving: Sequence[int], deepest: Array) -> Array:
        """Tokens a round that moving each row to each drafter costs."""
        costs = np.zeros((len(rows), len(serving)))
        for row, active in enumerate(rows):
            drafter = self._beliefs.of(active).drafter
            if drafter < 0:
                continue  # whoever drafts must read its prompt
            for at, index in enumerate(serving):
                name = self._names[index]
                lag = active.known - active.seen.get(name, 0)
                if index != drafter and lag > CHUNK:
                    rounds = min(LONGEST, max(SHORTEST, active.room / float(deepest[row, at])))
                    costs[row, at] = self._switch_costs.of(name)(lag, 1) * self._speed / rounds
        return costs

    def _for_prompts(self, batch: Batch, serving: Sequence[int]) -> tuple[Reader, ...]:
        """Of requests that have not drafted yet. Nobody judges a first token, or anything under the rejection rule."""
        new = [
            (row, active)
            for row, active in enumerate(batch.rows)
            if not active.output
            and not active.request.drafter
            and active.request.speculation != "off"
            and active.request.sampling.rule is Rule.COUPLED
            and 1 < active.request.num_prompt <= PROMPT_TOKENS
        ]
        if not new or self._bank < DEEPEST:
            return ()
        wanted: dict[int, list[int]] = {}
        for row, active in new:
            if self._beliefs.of(active).rounds.sum() >= SURE:
                continue
            unsure = [each for each in serving if self._reads[each].prompts and self._names[each] not in active.seen]
            for each in unsure[:PROMPTERS]:
                if len(wanted.setdefault(each, [])) < PROMPTS:
                    wanted[each].append(row)
        return tuple(self._prompts_of(batch, drafter, rows) for drafter, rows in wanted.items())

    def _prompts_of(self, batch: Batch, drafter: int, rows: list[int]) -> Reader:
        ends = [batch.rows[row].request.num_prompt for row in rows]
        self._reads[drafter].prompt = batch.rows[rows[0]]
        return self._reader(batch, drafter, rows, [max(1, end - PROMPT) for end in ends], PROMPT_TOKENS)

    def _catching_up(self, batch: Batch, assigned: Assignment, serving: Sequence[int]) -> tuple[Reader, ...]:
        rows = [
            row
            for row, active in enumerate(batch.rows[: batch.decoding])
            if assigned.why[row] != ASKED and active.request.sampling.rule is Rule.COUPLED
        ]
        if not rows:
            return ()
        actives = [batch.rows[row] for row in rows]
        behind = np.array(
            [
                [
                    active.known - max(active.request.num_prompt, self._beliefs.of(active).replays[each].end)
                    for each in serving
                ]
                for active in actives
            ]
        )
        idle = np.array([[assigned.drafters[row] != self._names[each] for each in serving] for row in rows])
        worth = (behind >= CHUNK) & idle
        if not worth.any():
            return ()
        deepest = int(self._depths[-1])
        could = self._beliefs.expected(actives, HOPE)[:, serving, deepest]
        now = self._beliefs.expected(actives)[:, :, deepest]
        use = [self._names.index(assigned.drafters[row]) for row in rows]  # it may rest while others serve again
        hope = np.where(worth, (could - now[np.arange(len(rows)), use][:, None]).clip(0.0), -1.0)
        order = np.argsort(-hope, axis=0, kind="stable")[:MOST_ROWS]  # of each drafter's rows, those that hope for most
        promise = np.take_along_axis(hope, order, 0).clip(0.0).sum(axis=0)
        best = int(promise.argmax())
        if promise[best] <= 0.0:
            if self._bank < FULL:
                return ()
            best = min(np.flatnonzero(worth.any(axis=0)).tolist(), key=lambda at: self._reads[serving[at]].round)
        reads = self._reads[serving[best]]
        if self._bank < reads.seconds:
            return ()
        reads.round, reads.prompt = self._round, None  # what it says next may be of no prompt
        mine = [rows[at] for at in order[:, best].tolist() if worth[at, best]]
        judge = [
            max(
                batch.rows[row].request.num_prompt,
                batch.rows[row].known - WINDOW,
                self._beliefs.of(batch.rows[row]).replays[serving[best]].end,
            )
            for row in mine
        ]
        return (self._reader(batch, serving[best], mine, judge, MOST_TOKENS),)

    def _reader(self, batch: Batch, drafter: int, rows: list[int], judge: list[int], most: int) -> Reader:
        name, unread = self._names[drafter], 0
        for active in (batch.rows[row] for row in rows):
            read = self._beliefs.of(active).replays[drafter].end  # drafting, too
            if name in active.heard:
                read = max(read, active.heard[name].read)
            unread += active.known - min(read, active.seen.get(name, 0))  # what it was told it may not have read yet
        budget = max(SHAPE, min(most, unread) // SHAPE * SHAPE)
        return Reader(name, np.asarray(rows, np.int32), np.asarray(judge, np.int32), budget)
