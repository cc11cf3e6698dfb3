"""Predicts the time of a round of n rows and depth k, learnt from measured rounds.

    T(n, k) = verify(n, n + drafts(k), 0) + [k > 0] drafting(k) + overhead(n)
    verify(n, t, p) = f(t + p) + g(n) + c p + [t > n] d
                      piecewise linear between doublings; p prompt tokens; d: the extra seconds of a pass with drafts,
                      for a plain pass finds the last one's data in caches, or begins early
    drafting(k)     = max over drafters of draft(m, k) + s (sum of them - max)    m of the rows are its own
    draft(m, k)     = call(m) + k step(m)    one such curve per drafter; only rows that draft so deep take a step

Drafters that work at the same time take as long as the slowest if each has a core. If they share one core, they take as
long as all of them in turn. s is 0 in the first case and 1 in the second. It is measured in rounds of several drafters
whose own curves are known.

Catch-up is not part of it (`covey.planner.switching`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from covey.bandits.policy import DraftCall
from covey.planner.regression import Array, Regression, doublings, hat, smooth
from covey_client.costs.surface import Surface
from covey_client.costs.table import CostTable

Index = npt.NDArray[np.int64]
FAR = 1e7  # tokens up to which the last line extends
Shares = tuple[tuple[str, int], ...]  # rows that draft, by drafter
Passes = tuple[int, ...]  # tokens in the pass, for each depth from 0
CACHED = 256  # situations whose features are kept
PROMPT = 0.3  # prior deviation of a prompt token's c, in slopes of f
PAUSE = 0.1  # prior deviation of d, in passes over one row
TOGETHER = 0.05  # weight of a new round in the drafters' s
READ, READ_STEP = 4096, 8  # the prompt tokens that an allowance considers: up to READ, in steps
GUESS = 0.1  # a drafted token's time before any was drafted, in passes over one row


@dataclass(frozen=True, slots=True)
class PassCurve:
    """The time of a round without drafting, by the tokens in its pass: a piecewise linear curve for `rows` rows. A pass
    with drafts takes `drafts` seconds more, each prompt token `prompt` seconds more."""

    rows: int
    knots: Array
    seconds: Array
    drafts: float
    prompt: float

    @classmethod
    def unknown(cls, rows: int) -> PassCurve:
        """Return the curve before anything was measured: its unit of time is the token."""
        ends = np.array([0.0, FAR])
        return cls(rows, ends, ends, 0.0, 0.0)

    def at(self, tokens: Array | Index | int, prefill: Index | int = 0) -> Array:
        """Return the seconds of passes over `tokens` and, in addition, `prefill` prompt tokens."""
        seconds: Array = np.interp(tokens + prefill, self.knots, self.seconds)
        if self.drafts:
            seconds = seconds + self.drafts * (tokens > self.rows)
        return seconds + self.prompt * prefill


def _shape(tokens: Array, table: CostTable | None) -> Array:
    """Return f at each number of `tokens`, scaled to f(1) = 1. It comes from the table's passes with drafts, over all
    numbers of rows; without a table it is a guess for an unknown device."""
    cells = [cell for cell in table.verify if cell[0] < cell[1] or cell[1] == 1] if table is not None else []
    if len(cells) < 2:
        seconds_at: Array = 1.0 + tokens / 128.0
        return seconds_at
    line = Surface((1, count, seconds) for _, count, seconds in cells)  # the mean of cells with equal tokens
    seconds_at = np.array([line(1, count) for count in tokens])
    return np.maximum(seconds_at / max(float(seconds_at[0]), 1e-9), 0.1)


class RoundCosts:
    """Owns the curves of one target and its drafters."""

    def __init__(self, max_depth: int, max_rows: int, table: CostTable | None = None) -> None:
        self._depths = np.arange(max_depth + 1.0)
        self._rows = doublings(max_rows)
        self._tokens = doublings(max_rows * (max_depth + 1))
        self._far = np.append(self._tokens, FAR)
        self._verifying = lru_cache(CACHED)(self._passes_features)
        self._drafting = lru_cache(CACHED)(self._drafting_features)
        shape = _shape(self._tokens, table)
        doubt = np.zeros((len(shape) + len(self._rows) + 2,) * 2)
        doubt[: len(shape), : len(shape)] = smooth(len(shape), 3.0, 0.5) * np.outer(shape, shape)
        doubt[len(shape) : -2, len(shape) : -2] = smooth(len(self._rows), 3.0, 0.2)
        doubt[-2, -2], doubt[-1, -1] = PROMPT**2, PAUSE**2
        self._verify = Regression(np.concatenate([shape, np.zeros(len(self._rows) + 2)]), doubt)
        self._overhead = Regression(np.ones(len(self._rows)), smooth(len(self._rows), 3.0, 0.5), noise=0.2)
        self._drafts: dict[str, Regression] = {}
        self._alone: set[str] = set()  # drafters that were measured while no other drafted
        self._crowding = 0.0  # s
        self._rounds = 0
        if table is not None:
            self._start_from(table)

    def _start_from(self, table: CostTable) -> None:
        for rows, tokens, seconds in table.verify:
            self._verify.believe(self._verify_features(rows, tokens), seconds)
        for rows, seconds in table.overhead:
            self._overhead.believe(hat(rows, self._rows), seconds)
        for name, cells in table.draft.items():
            for rows, depth, seconds in cells:
                self._draft(name).believe(self._draft_features(rows, depth), seconds)
                self._alone.add(name)

    @property
    def measured(self) -> bool:
        """Return whether anything was measured; before that, predictions only compare depths."""
        return self._verify.scaled

    def predict(self, rows: int, shares: Shares, passes: Passes) -> tuple[Array, Array]:
        """Return the seconds of a round, and their variance, for each depth from 0."""
        drafts, doubt = self._predict_drafts(shares)
        drafts[0] = doubt[0] = 0.0
        seconds = self.without_drafts(rows, passes) + drafts
        verify = self._verifying(rows, passes)
        variance = self._verify.variance(verify)
        variance += doubt
        floor = self._verify.mean(verify[0]) * 0.05
        return np.maximum(seconds, max(float(floor), 1e-9)), variance

    def without_drafts(self, rows: int, passes: Passes) -> Array:
        """Return the seconds of a round without drafting, by depth."""
        return self._verify.mean(self._verifying(rows, passes)) + self.overhead(rows)

    def curve(self, rows: int, overhead: float = 0.0) -> PassCurve:
        """Return the seconds of passes, with `overhead` added."""
        knots, weights = self._tokens, self._verify.weights
        line = np.empty(len(knots) + 1)
        line[:-1] = weights[: len(knots)]
        line[-1] = line[-2] + (line[-2] - line[-3]) / (knots[-1] - knots[-2]) * (FAR - knots[-1])
        line += np.dot(hat(rows, self._rows), weights[len(knots) : -2]) + overhead
        return PassCurve(rows, self._far, line, float(weights[-1]), float(weights[-2]) / 128.0)

    def prompt_tokens_within(self, rows: int, drafts: float, seconds: float, longest: float = math.inf) -> int:
        """Return how many prompt tokens fit into a pass over `rows` within the `longest` time, and into one over `rows`
        and `drafts` within `seconds`. At least return those that are almost free: each takes at most half of its time
        in the longest passes, because the device waits for its weights meanwhile."""
        prompts, curve = np.arange(0, READ, READ_STEP), self.curve(rows)
        within = curve.at(np.full(len(prompts), float(rows)), prompts) <= longest
        if seconds < math.inf:
            within &= curve.at(np.full(len(prompts), rows + drafts), prompts) <= seconds
        slopes = np.diff(self._verify.weights[: len(self._tokens)])
        slopes /= np.diff(self._tokens)
        knee = self._tokens[int(np.argmax(slopes > 0.5 * slopes[-1]))]
        return max(int(knee) - rows, int(prompts[within][-1]) if within.any() else 0)

    def overhead(self, rows: int) -> float:
        """Return the seconds of a round outside drafters and target; 0 before any were measured."""
        return float(self._overhead.mean(hat(rows, self._rows))) if self._overhead.scaled else 0.0

    def more(self, rows: int, prefill: int, passes: Passes) -> Array:
        """Return the seconds that `prefill` prompt tokens add to the pass, for each depth from 0."""
        plain = self._verifying(rows, passes)
        fuller = np.stack([self._verify_features(rows, tokens, prefill) for tokens in passes])
        return np.maximum(self._verify.mean(fuller - plain), 0.0)

    def side_by_side(self, seconds: Sequence[float]) -> float:
        """Return the time of drafters that work at the same time. `seconds` holds each drafter's time alone."""
        longest = max(seconds)
        return longest + self._crowding * (sum(seconds) - longest)

    def _predict_drafts(self, shares: Shares) -> tuple[Array, Array]:
        """Return the seconds of all drafters together and their variance, for each depth."""
        curves = [(self._draft(name), self._drafting(rows)) for name, rows in shares]
        times = np.maximum([curve.mean(features) for curve, features in curves], 0.0)
        doubts = np.array([curve.variance(features) for curve, features in curves])
        if len(curves) == 1:
            return times[0], doubts[0]
        weights = np.where(np.arange(len(times))[:, None] == times.argmax(axis=0), 1.0, self._crowding)
        return (weights * times).sum(axis=0), (weights**2 * doubts).sum(axis=0)

    def observe(
        self,
        rows: int,
        calls: Mapping[str, DraftCall],
        *,
        verified: int,
        prefill: int = 0,
        verify: float,
        draft: float,
        overhead: float | None,
        rounds: int = 1,
    ) -> None:
        """Learn from a round, or from the means of `rounds` similar ones. `draft` is the time of all drafters together
        without catch-up, ignored if none drafted. `overhead` is None if the round does not show it."""
        self._verify.update(self._verify_features(rows, verified, prefill), verify, rounds)
        self._rounds += overhead is not None
        # Overhead changes slowly, and each update takes time itself.
        if overhead is not None and (rounds > 1 or self._rounds % 4 == 1):
            self._overhead.update(hat(rows, self._rows), overhead)
        if len(calls) == 1:
            for name, call in calls.items():
                self._draft(name).update(self._step_features(call.steps), draft)
                self._alone.add(name)
        elif calls:
            self._observe_several(calls, draft)

    def _observe_several(self, calls: Mapping[str, DraftCall], draft: float) -> None:
        """Learn from simultaneous calls. They teach a drafter's own curve only until it is measured alone."""
        way = max(0.0, draft - max(call.seconds for call in calls.values()))
        alone = []
        for name, call in calls.items():
            curve, features = self._draft(name), self._step_features(call.steps)
            if name not in self._alone:
                curve.update(features, call.seconds + way)
            alone.append(float(curve.mean(features)))
        more = sum(alone) - max(alone)
        if more > 0.0:
            crowding = min(1.0, max(0.0, (draft - max(alone)) / more))
            self._crowding += TOGETHER * (crowding - self._crowding)

    def _draft(self, drafter: str) -> Regression:
        curve = self._drafts.get(drafter)
        if curve is not None and curve.scaled:
            return curve
        if curve is None:
            growth = 1.0 + self._rows / 64.0
            shape = np.concatenate([0.5 * growth, growth])
            kinds = np.diag(np.array((0.7, 0.5)) ** 2)  # the call's and the step's
            doubt: Array = np.multiply(np.kron(kinds, smooth(len(growth), 4.0, 1.0)), np.outer(shape, shape))
            curve = self._drafts[drafter] = Regression(shape, doubt)
        if self._verify.scaled:
            curve.assume(GUESS * float(self._verify.mean(self._verify_features(1, 1))))
        return curve

    def _drafting_features(self, rows: int) -> Array:
        """Return the features of drafting, for each depth from 0."""
        return np.stack([self._draft_features(rows, depth) for depth in self._depths])

    def _passes_features(self, rows: int, passes: Passes) -> Array:
        """Return the features of passes without prompts, for each depth from 0."""
        return np.stack([self._verify_features(rows, tokens) for tokens in passes])

    def _verify_features(self, rows: int, tokens: int, prefill: int = 0) -> Array:
        others = np.array([prefill / 128.0, float(tokens > rows)])
        return np.concatenate([hat(tokens + prefill, self._tokens), hat(rows, self._rows), others])

    def _draft_features(self, rows: int, depth: float) -> Array:
        by_rows = hat(rows, self._rows)
        return np.concatenate([by_rows, depth * by_rows])

    def _step_features(self, steps: Sequence[int]) -> Array:
        if steps[0] == steps[-1]:
            return self._draft_features(steps[0], len(steps))
        by_rows = [hat(rows, self._rows) for rows in steps]
        return np.concatenate([by_rows[0], np.sum(by_rows, axis=0)])
