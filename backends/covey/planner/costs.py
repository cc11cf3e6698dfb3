"""What a round of n rows and depth k takes, learnt from the rounds there were.

    T(n, k) = verify(n, n + drafts(k), 0) + [k > 0] draft(m, k) + overhead(n)     m of n rows draft: as a rule all
    verify(n, t, p) = f(t + p) + g(n) + c p + [t > n] d
                      piecewise linear between doublings; p of the tokens are prompts', and d is what plain passes save:
                      they find caches as the one before left them, or are begun ahead of their time
    draft(m, k)     = call(m) + k step(m)    one such curve per set of drafters in use; a step is taken by the rows that
                      draft so deep

A drafter's catch-up is not in here (`covey.planner.switching`, `covey.planner.upkeep`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from covey.planner.cost_table import CostTable, Surface
from covey.planner.regression import Array, Regression, doublings, hat, smooth
from covey.types import JsonDict

Mix = tuple[str, ...]  # the drafters in use, sorted
Passes = tuple[int, ...]  # by depth from 0: tokens in the pass
CACHED = 256  # situations whose features are kept
PROMPT = 0.3  # how far c may be from nothing, in slopes of f
PAUSE = 0.1  # how far d may be from nothing, in passes over one row
GUESS = 0.1  # a drafted token's time before any was drafted, in passes over one row


def _rising(values: Array) -> Array:
    """The values, where one is less than one before it brought to where both are between: more tokens take no less."""
    found: Array = (np.maximum.accumulate(values) + np.minimum.accumulate(values[::-1])[::-1]) / 2
    return found


def _shape(tokens: Array, table: CostTable | None) -> Array:
    """Of f, at so many tokens, f(1) being 1: that of the table's passes with drafts, whatever the rows, else a guess
    for a device that is not known. Doubt is relative to it, so that a device unlike the guess would long be taken for a
    guess gone wrong."""
    cells = [cell for cell in table.verify if cell[0] < cell[1] or cell[1] == 1] if table is not None else []
    if len(cells) < 2:
        found: Array = 1.0 + tokens / 128.0
        return found
    line = Surface((1, count, seconds) for _, count, seconds in cells)  # the mean of those with as many tokens
    found = np.array([line(1, count) for count in tokens])
    return np.maximum(_rising(found) / max(float(found[0]), 1e-9), 0.1)


class RoundCosts:
    """One target's curves."""

    def __init__(self, max_depth: int, max_rows: int, table: CostTable | None = None) -> None:
        self._depths = np.arange(max_depth + 1.0)
        self._rows = doublings(max_rows)
        self._tokens = doublings(max_rows * (max_depth + 1))
        self._features: dict[tuple[int, int, Passes], tuple[Array, Array, Array]] = {}
        self._verifying: dict[tuple[int, int], Array] = {}
        shape = _shape(self._tokens, table)
        doubt = np.zeros((len(shape) + len(self._rows) + 2,) * 2)
        doubt[: len(shape), : len(shape)] = smooth(len(shape), 3.0, 0.5) * np.outer(shape, shape)
        doubt[len(shape) : -2, len(shape) : -2] = smooth(len(self._rows), 3.0, 0.2)
        doubt[-2, -2], doubt[-1, -1] = PROMPT**2, PAUSE**2
        self._verify = Regression(np.concatenate([shape, np.zeros(len(self._rows) + 2)]), doubt)
        self._overhead = Regression(np.ones(len(self._rows)), smooth(len(self._rows), 3.0, 0.5), noise=0.2)
        self._drafts: dict[Mix, Regression] = {}
        self._rounds = 0
        self._plain: set[int] = set()  # batch sizes that were seen to decode plainly
        if table is not None:
            self._start_from(table)

    def _start_from(self, table: CostTable) -> None:
        self._plain.update(rows for rows, tokens, _ in table.verify if rows == tokens)
        for rows, tokens, seconds in table.verify:
            self._verify.believe(self._verify_features(rows, tokens), seconds)
        for rows, seconds in table.overhead:
            self._overhead.believe(hat(rows, self._rows), seconds)
        for name, cells in table.draft.items():
            for rows, depth, seconds in cells:
                self._draft((name,)).believe(self._draft_features(rows, depth), seconds)

    @property
    def known(self) -> bool:
        """Whether anything was measured: before that, predictions compare depths and are no seconds."""
        return self._verify.scaled

    def rests(self, rows: int) -> bool:
        """Whether the prediction of a plain pass over so many rows rests on one over half as many to twice as many.
        Passes with drafts in them say little of it: a device may take much less for it than for as many tokens of
        fewer rows, by another algorithm or because it begins such a pass early."""
        return any(rows <= 2 * seen and seen <= 2 * rows for seen in self._plain)

    def predict(self, rows: int, mix: Mix, drafting: int, passes: Passes) -> tuple[Array, Array]:
        """Seconds of a round, and their variance, for each depth from 0."""
        verify, draft, overhead = self._cached(rows, drafting, passes)
        curve = self._draft(mix)
        seconds = self._verify.mean(verify)
        seconds[1:] = _rising(seconds[1:])
        drafts = curve.mean(draft)
        np.maximum(drafts, 0.0, out=drafts)
        drafts[0] = 0.0
        seconds += drafts
        if self._overhead.scaled:
            seconds += self._overhead.mean(overhead)
        variance = self._verify.variance(verify)
        doubt = curve.variance(draft)
        doubt[0] = 0.0
        variance += doubt
        floor = self._verify.mean(verify[0]) * 0.05
        return np.maximum(seconds, max(float(floor), 1e-9)), variance

    def more(self, rows: int, prefill: int, passes: Passes) -> Array:
        """Seconds that so many prompt tokens add to the pass, for each depth from 0."""
        plain = np.stack([self._verify_features(rows, tokens) for tokens in passes])
        fuller = np.stack([self._verify_features(rows, tokens, prefill) for tokens in passes])
        return np.maximum(self._verify.mean(fuller - plain), 0.0)

    def observe(
        self,
        rows: int,
        mix: Mix,
        steps: Sequence[int],
        *,
        verified: int,
        prefill: int = 0,
        verify: float,
        draft: float,
        overhead: float | None,
    ) -> None:
        """`steps`: rows that drafted one token or more, two or more, and so on. `draft` is without catch-up, and not
        read where nobody drafted. `overhead` is None where the round says nothing about it."""
        self._verify.update(self._verify_features(rows, verified, prefill), verify)
        if verified == rows and not prefill:
            self._plain.add(rows)
        self._rounds += overhead is not None
        if overhead is not None and self._rounds % 4 == 1:  # it changes slowly, and each update takes time itself
            self._overhead.update(hat(rows, self._rows), overhead)
        if steps:
            self._draft(mix).update(self._step_features(steps), draft)

    def _draft(self, mix: Mix) -> Regression:
        curve = self._drafts.get(mix)
        if curve is not None and curve.scaled:
            return curve
        if curve is None:
            growth = 1.0 + self._rows / 64.0
            shape = np.concatenate([0.5 * growth, growth])
            kinds = np.diag(np.array((0.7, 0.5)) ** 2)  # the call's and the step's
            doubt: Array = np.multiply(np.kron(kinds, smooth(len(growth), 4.0, 1.0)), np.outer(shape, shape))
            curve = self._drafts[mix] = Regression(shape, doubt)
        if self._verify.scaled:
            curve.assume(GUESS * float(self._verify.mean(self._verify_features(1, 1))))
        return curve

    def _cached(self, rows: int, drafting: int, passes: Passes) -> tuple[Array, Array, Array]:
        key = rows, drafting, passes
        found = self._features.get(key)
        if found is None:
            if len(self._features) >= CACHED:
                self._features.clear()
            verify = np.stack([self._verify_features(rows, tokens) for tokens in passes])
            draft = np.stack([self._draft_features(drafting, depth) for depth in self._depths])
            found = self._features[key] = (verify, draft, hat(rows, self._rows))
        return found

    def _verify_features(self, rows: int, tokens: int, prefill: int = 0) -> Array:
        found = self._verifying.get((rows, tokens)) if not prefill else None  # with it seldom twice the same
        if found is None:
            others = np.array([prefill / 128.0, float(tokens > rows)])
            found = np.concatenate([hat(tokens + prefill, self._tokens), hat(rows, self._rows), others])
            if not prefill:
                if len(self._verifying) >= CACHED:
                    self._verifying.clear()
                self._verifying[rows, tokens] = found
        return found

    def _draft_features(self, rows: int, depth: float) -> Array:
        by_rows = hat(rows, self._rows)
        return np.concatenate([by_rows, depth * by_rows])

    def _step_features(self, steps: Sequence[int]) -> Array:
        if steps[0] == steps[-1]:
            return self._draft_features(steps[0], len(steps))
        by_rows = [hat(rows, self._rows) for rows in steps]
        return np.concatenate([by_rows[0], np.sum(by_rows, axis=0)])

    def state(self) -> JsonDict:
        return {
            "verify": self._verify.state(),
            "overhead": self._overhead.state(),
            "plain": sorted(self._plain),
            "drafts": [[list(mix), curve.state()] for mix, curve in self._drafts.items() if curve.scaled],
        }

    def restore(self, state: JsonDict) -> None:
        """ValueError when it is not such a state; this object is then not to be used."""
        self._verify.restore(state["verify"])
        self._overhead.restore(state["overhead"])
        self._plain = {int(rows) for rows in state["plain"]}
        for mix, curve in state["drafts"]:
            self._draft(tuple(str(name) for name in mix)).restore(curve)
