"""Estimates the time and tokens of a round of each depth, learnt from all rounds at all batch sizes.

    tokens(k)  = (sum over kinds of rows: rows of that kind * E(k)) + rows that do not draft
    seconds(k) = T(n, k)
    value(k)   = tokens(k) / seconds(k)

E(k) comes from `covey.planner.acceptance`, T(n, k) from `covey.planner.costs`. A kind is a drafter together with
whether its rows draw at random. Rows that draw at random accept fewer drafts than greedy rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from covey.bandits.policy import DraftCall, Kind, Outcome, Situation
from covey.planner.acceptance import FIRST, Acceptance
from covey.planner.costs import PassCurve, Passes, RoundCosts
from covey.planner.regression import Array
from covey_client.costs.table import CostTable

# Plain rounds of one size that are learnt together, if they are shorter than SHORT seconds. On few cores learning takes
# time from the target, a 20th of such a round.
EACH, SHORT = 4, 0.01


@dataclass(frozen=True, slots=True)
class Expected:
    """The expectations of one batch, by depth from 0."""

    passes: Passes  # tokens to be verified
    tokens: list[float]  # emitted
    doubt: list[float]  # relative deviation of those
    seconds: list[float]
    variances: list[float]  # of these seconds
    values: list[float]

    @property
    def latencies(self) -> list[float]:
        """Return the seconds per token."""
        return [1.0 / value for value in self.values]


class Expectations:
    """Owns the estimates; `of` remembers its last answer until something is learnt. Callers may read `costs` only."""

    def __init__(self, max_depth: int, max_rows: int, table: CostTable | None = None) -> None:
        self._max_depth = max_depth
        self.costs = RoundCosts(max_depth, max_rows, table)
        self._acceptance: dict[Kind, Acceptance] = {}
        self._last: tuple[object, Expected] | None = None
        self._plain_seconds: dict[int, float] = {}  # `plain` by rows, until something is learnt
        self.selected = False  # whether a selector drops drafts
        # Plain rounds to learn together: seconds of verification and overhead, by rows and whether overheard.
        self._plain: dict[tuple[int, bool], list[tuple[float, float]]] = {}

    @property
    def measured(self) -> bool:
        """Return whether anything was measured; before that, expectations only compare depths."""
        return self.costs.measured

    def of(self, situation: Situation) -> Expected:
        """Return the expectations of a batch. Does not mutate the estimates."""
        shared = situation.shares, situation.sampled, situation.shifts
        key = situation.rows, shared, situation.drafts, situation.width
        if self._last is not None and self._last[0] == key:
            return self._last[1]
        rows = max(1, situation.rows)
        tokens, doubt = self._tokens(situation)
        passes = self._passes(situation)
        lanes = tuple((name, count * situation.width) for name, count in situation.parts)
        mean, variance = self.costs.predict(rows, lanes, passes)
        seconds = mean.tolist()
        values = [count / time for count, time in zip(tokens, seconds)]
        expected = Expected(passes, tokens, doubt, seconds, variance.tolist(), values)
        self._last = key, expected
        return expected

    def without_drafts(self, rows: int) -> Array:
        """Return the seconds of a round in which all rows draft, drafting excluded, by depth; all 1 if unknown."""
        passes = tuple(rows * (depth + 1) for depth in range(self._max_depth + 1))
        return self.costs.without_drafts(rows, passes) if self.costs.measured else np.ones(self._max_depth + 1)

    def draft_cost(self, rows: int) -> float:
        """Return the cost of one more draft in a row that drafts, in tokens of plain rounds."""
        seconds = self.without_drafts(max(1, rows))
        return max(0.0, float(seconds[-1] - seconds[1]) / max(1, self._max_depth - 1) / float(seconds[0]))

    def gain(self, situation: Situation, depth: int) -> float:
        """Return how many tokens a row gains at that depth over plain rounds that take the same time."""
        expected, rows = self.of(situation), max(1, situation.rows)
        return expected.tokens[depth] / rows - expected.seconds[depth] / expected.seconds[0]

    def curve(self, rows: int) -> PassCurve:
        """Return the curve of rounds without drafting; its unit is the token before anything was measured."""
        if not self.measured:
            return PassCurve.unknown(rows)
        return self.costs.curve(rows, self.costs.overhead(rows))

    def plain(self, rows: int) -> float:
        """Return the seconds of a round of `rows` rows with neither drafts nor prompts."""
        known = self._plain_seconds.get(rows)
        if known is None:
            known = self._plain_seconds[rows] = float(self.curve(rows).at(np.array([float(rows)]))[0])
        return known

    def speed(self, rows: int) -> float:
        """Return the tokens per second of plain rounds of `rows` rows."""
        return rows / max(1e-9, self.plain(rows))

    def more(self, situation: Situation) -> list[float]:
        """Return the seconds that the batch's prompt tokens add to the pass, by depth."""
        passes = self.of(situation).passes
        added: list[float] = self.costs.more(max(1, situation.rows), situation.prefill, passes).tolist()
        return added

    def update(self, situation: Situation, depth: int, outcome: Outcome) -> None:
        """Learn from a round that shows the cost of its depth."""
        if not crosses(situation.previous, depth):
            overhead = max(0.0, outcome.seconds - outcome.draft_seconds - outcome.verify_seconds)
            self._observe(situation, depth, outcome, overhead)
        self._count_acceptance(situation, outcome)

    def overhear(self, situation: Situation, depth: int, outcome: Outcome) -> None:
        """Learn from a round that shows neither the cost of its depth nor the overhead of rounds."""
        if not crosses(situation.previous, depth):
            self._observe(situation, depth, outcome, None)
        self._count_acceptance(situation, outcome)

    def _observe(self, situation: Situation, depth: int, outcome: Outcome, overhead: float | None) -> None:
        rows = max(1, situation.rows)
        if depth == 0 and outcome.verified == rows and not (situation.prefill or outcome.calls):
            held = self._plain.setdefault((rows, overhead is None), [])
            held.append((outcome.verify_seconds, overhead or 0.0))
            if len(held) == EACH or outcome.seconds > SHORT:
                self._learn_plain()
            return
        self._learn_plain()
        self._forget()
        draft = outcome.draft_seconds - outcome.catch_up_seconds
        calls = outcome.calls
        if calls is None:
            calls = {name: DraftCall([rows] * depth, draft) for name, rows in situation.parts if depth}
        self.costs.observe(
            rows,
            calls,
            verified=outcome.verified,
            prefill=situation.prefill,
            verify=outcome.verify_seconds,
            draft=draft,
            overhead=overhead,
        )

    def _learn_plain(self) -> None:
        """Learn from the plain rounds that were put off."""
        for (rows, overheard), held in self._plain.items():
            verify, overhead = (sum(column) / len(held) for column in zip(*held))
            seconds = None if overheard else overhead
            self.costs.observe(rows, {}, verified=rows, verify=verify, draft=0.0, overhead=seconds, rounds=len(held))
            self._forget()
        self._plain.clear()

    def _forget(self) -> None:
        """Forget answers, because costs were learnt."""
        self._last = None
        self._plain_seconds.clear()

    def _count_acceptance(self, situation: Situation, outcome: Outcome) -> None:
        """Count the acceptance of each kind of drafts."""
        if outcome.trials:
            self._last = None
        for kind, trials in outcome.trials.items():
            self._accepted(kind).update(trials.tried, trials.accepted, trials.rows)
            self._accepted(kind).fill(trials.asked, trials.verified)
        if situation.ceiling and situation.shares:
            for kind, _ in situation.kinds():
                if kind not in outcome.trials:
                    self._accepted(kind).idle()

    def _passes(self, situation: Situation) -> Passes:
        """Return the tokens that the target will verify, by depth: the usual share of those that drafters are asked
        for. If a selector drops nodes, a tree counts as a chain until more is known."""
        shares = situation.shares
        filled = 1.0
        if shares:
            usual = 1.0 / situation.width if self.selected else 1.0
            each = [rows * self._accepted(kind).filled(usual) for kind, rows in situation.kinds()]
            filled = sum(each) / situation.drafting
        rows = max(1, situation.rows)
        if filled == 1.0 and not situation.drafts:
            drafting = max(1, situation.drafting)
            return tuple(range(rows, rows + drafting * self._max_depth + 1, drafting))
        return tuple(rows + round(filled * situation.asked(depth)) for depth in range(self._max_depth + 1))

    def _tokens(self, situation: Situation) -> tuple[list[float], list[float]]:
        """Return the tokens that a round yields, and their relative deviation, by depth."""
        kinds = situation.kinds()
        shifts = situation.shifts or ((),) * len(kinds)
        plain = situation.rows - situation.drafting
        if len(kinds) == 1 and not plain:
            kind, rows = kinds[0]
            accepted = self._accepted(kind)
            return accepted.together(shifts[0], rows), accepted.expected()[1]
        tokens = [float(plain)] * (self._max_depth + 1)
        squares = [0.0] * (self._max_depth + 1)
        for (kind, rows), own in zip(kinds, shifts):
            accepted = self._accepted(kind)
            for depth, (each, deviation) in enumerate(zip(accepted.together(own, rows), accepted.expected()[1])):
                tokens[depth] += each
                squares[depth] += (each * deviation) ** 2
        return tokens, [square**0.5 / total for square, total in zip(squares, tokens)]

    def _accepted(self, kind: Kind) -> Acceptance:
        """Return the estimate for a kind of rows. A new one leans on what is known of the drafter's other kind."""
        acceptance = self._acceptance.get(kind)
        if acceptance is None:
            drafter, random = kind
            other = self._acceptance.get((drafter, not random))
            first = FIRST if other is None else other.rates()[0]
            acceptance = self._acceptance[kind] = Acceptance(self._max_depth, first)
        return acceptance


def crosses(before: int, depth: int) -> bool:
    """Return whether a change of depth begins or ends drafting; the first round after that teaches no costs."""
    return (depth > 0) != (before > 0)
