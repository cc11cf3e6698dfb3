"""AdaServe as published, with the corrections of `covey.trees.selection`.

    depth    d = clip(floor(B1 / (n + c1)) - 1, Dmin, Dmax)      its equation 8, n being the rows that decode
    width    w = clip(floor(B2 / n) + c2, 1, Wmax)               its equation 9
    select   rows in descending A(r), each its best nodes until 1 + the sum of their path probabilities reaches
             min(A(r), d + 1), at most n_max of them with its root; then the best of all until B1 tokens are in the pass

Path probabilities are the drafter's own, not calibrated: products of q if it ships q, else of shares of the race.
Unless `speculation.adaserve` sets them, B1 and B2 are the largest number of tokens whose pass takes at most `SLACK`
times as long as a pass over one token.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from covey.bandits.policy import Forgetful, Outcome, Reason, Situation
from covey.contracts.errors import SettingError
from covey.contracts.types import Trees
from covey.planner.candidates import Candidates, TreeSelector
from covey.planner.standing import Standing
from covey.requests.rounds import Drafted, Round
from covey.requests.scheduler import Batch
from covey.trees.paths import Array, Flags
from covey.trees.selection import Ranked, customised, filled
from covey_client.costs.surface import Surface
from covey_client.costs.table import CostTable

SLACK = 1.2
UNKNOWN = 64  # the token budget without a cost table
DEFAULTS = {"b1": 0, "b2": 0, "c1": 0, "c2": 0, "n_max": 8, "d_min": 1}
ENTRY = rf"({'|'.join(DEFAULTS)})=\d{{1,5}}"
NEW = 0.1  # weight of a new round in the mean round time


def constants(entries: Iterable[str]) -> Mapping[str, int]:
    """Return the defaults, overridden by `speculation.adaserve`; the last entry of a key counts."""
    given = dict(entry.split("=") for entry in entries)
    wrong = [f"{key}={value}" for key, value in given.items() if not re.fullmatch(ENTRY, f"{key}={value}")]
    if wrong:
        raise SettingError(f"speculation.adaserve: got {wrong[0]!r}, allowed: {', '.join(DEFAULTS)}, each =NUMBER")
    return {**DEFAULTS, **{key: int(value) for key, value in given.items()}}


def knee(costs: CostTable | None, slack: float = SLACK) -> int:
    """Return the most tokens whose pass takes at most `slack` times as long as a pass over one token."""
    if costs is None or not costs.verify:
        return UNKNOWN
    verify = Surface((1, tokens, seconds) for _, tokens, seconds in costs.verify)  # over all numbers of rows
    limit, most = slack * verify(1, 1), max(tokens for _, tokens, _ in costs.verify)
    return max((tokens for tokens in range(1, most + 1) if verify(1, tokens) <= limit), default=1)


def selected(ranked: Ranked, needs: Array, demands: Array, allowed: int, most: int, fixed: Flags) -> Flags:
    """Return the `fixed` nodes and those of both selections, at most `allowed`. `most` is n_max, which bounds a row
    only in the first selection."""
    spare = allowed - int(np.count_nonzero(fixed))
    return filled(ranked, ranked.taken(customised(ranked, needs, demands, spare, most - 1)) | fixed, allowed)


class AdaServe(Forgetful):
    """Implements `LengthPolicy` by equations 8 and 9."""

    patient = True

    def __init__(self, max_depth: int, max_width: int, costs: CostTable | None, adaserve: Iterable[str]) -> None:
        self._max_depth = max_depth
        self._max_width = max_width
        self._constants = constants(adaserve)
        self.budget = self._constants["b1"] or knee(costs)
        self.most = self._constants["n_max"]
        self._lanes = self._constants["b2"] or self.budget
        self.width = 1
        self.reason = Reason("equation 8")

    def choose(self, situation: Situation) -> int:
        rows = max(1, situation.rows)
        self.width = max(1, min(self._max_width, self._lanes // rows + self._constants["c2"]))
        depth = self.budget // (rows + self._constants["c1"]) - 1
        return min(situation.ceiling, max(self._constants["d_min"], min(self._max_depth, depth)))

    def update(self, situation: Situation, depth: int, outcome: Outcome) -> None:
        """Learn nothing."""


class AdaServeSelector(TreeSelector):
    """Implements `Selector` by AdaServe's two selections."""

    log_q = True

    def __init__(self, policy: AdaServe, drafters: Sequence[str], max_depth: int) -> None:
        super().__init__(drafters, max_depth)  # calibration serves only hidden rows and metrics here
        self._policy = policy
        self._round_seconds = 0.0

    def select(self, batch: Batch, drafted: Drafted, budget: int) -> Trees:
        trees, rows = drafted.trees, len(batch.rows)
        if not len(trees.tokens):
            return trees
        scores = trees.log_q if len(trees.log_q) else trees.scores
        standing = Standing.of(batch)
        found = Candidates.of(standing, trees, scores, drafted.drafter, self.calibration)
        row_of = found.nodes.row_of
        hidden = found.hidden[row_of]
        paths = found.nodes.paths(np.where(hidden, found.own, found.said).astype(np.float64))
        ranked = Ranked.of(paths, row_of, rows)
        needs = standing.needs(self._round_seconds)
        deepest = np.zeros(rows)
        np.maximum.at(deepest, row_of, found.nodes.depth)
        wanting = np.zeros(rows)
        wanting[standing.timed] = needs
        wanting[standing.fixed] = 0.0
        demands = np.minimum(wanting, deepest + 1.0)
        fixed = found.fixed()
        allowed = max(
            int(np.count_nonzero(fixed)), min(self._policy.budget - batch.decoding, budget - int(batch.chunk.sum()))
        )
        kept = selected(ranked, wanting, demands, allowed, self._policy.most, fixed)
        return self.keep(found, kept, needs, allowed)

    def learn(self, done: Round, outcome: Outcome) -> None:
        self.count(done)
        if not done.prefill_tokens:
            self._round_seconds += (NEW if self._round_seconds else 1.0) * (outcome.seconds - self._round_seconds)
