"""Which drafted nodes are worth verifying: Covey's own selection.

Nodes are ranked by calibrated path probability. With n rows and the best m nodes a round is expected to bring

    tokens(m) = n + sum of the best m paths          seconds(m) = drafting + verify(n + m) + overhead

on the measured curves. The speed to be had is the largest tokens(m) / seconds(m) without prompts in the pass; m is
where tokens(m) - speed * seconds(m) is largest, in the pass as it is. So a node is verified if it brings more than the
time it takes would bring otherwise, and a pass that prompts make long is not filled for being long already.

Before that, rows whose objective can still be met are given what they need, 1 + the sum of their paths reaching A(r):
as many rows, the cheapest first, as are on time in a round that is longer by just these nodes. A row that is hopeless
or ahead is given nothing beforehand, and its nodes count for less where they take time: what is not theirs by need goes
to others. Without objectives nothing of this happens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from covey.bandits.length import Outcome
from covey.planner.candidates import Candidates, TreeSelector, needs_of
from covey.planner.expectations import Expectations
from covey.planner.outlook import Forecast, Outlook
from covey.rounds import Drafted, Round
from covey.scheduler import Batch
from covey.trees.paths import Array, Flags, Index
from covey.trees.selection import Ranked, wanted
from covey.types import Trees

GIVEN = 0.7  # what a token counts for of a row that is ahead of its objective, or hopeless
SAMPLED = 4  # one of so many rounds that drafted is kept for the outlook
SLIGHT = 0.01  # a path less likely is not looked at: it would bring next to nothing if it cost nothing
FAINT = 0.05  # a path less likely is no help in need


class Worth(TreeSelector):
    """Implements `Selector`."""

    def __init__(self, expectations: Expectations, drafters: Sequence[str], max_depth: int, *, teaches: bool) -> None:
        """`teaches`: the expectations are nobody else's to teach."""
        super().__init__(drafters, max_depth)
        self._expectations = expectations
        self._teaches = teaches
        self._outlook = Outlook(max_depth)
        self._selections = 0
        expectations.selection = self

    def select(self, batch: Batch, drafted: Drafted, budget: int) -> Trees:
        trees = drafted.trees
        if not len(trees.tokens):
            return trees
        found = Candidates.of(batch, trees, trees.scores, drafted.drafter, self.calibration)
        room = budget - int(batch.chunk.sum())
        paths = found.nodes.paths(found.own)
        self._selections += 1
        if self._selections % SAMPLED == 1:
            self._outlook.add(found.nodes, paths, found.ranks)
        rows = len(batch.rows)
        own = np.zeros(rows, np.bool_) if found.free.all() else own_rows(found, rows)
        kept = ~found.free
        near = np.flatnonzero((paths >= SLIGHT) & found.free)
        values, row_of, given = paths[near], found.nodes.row_of[near], int(np.count_nonzero(kept))
        drafting = max((drafted.seconds[name] + drafted.catch_up[name] for name in drafted.seconds), default=0.0)
        plain, now = (drafting + each[given:] for each in self._seconds(batch, given + len(near)))
        needs = needs_of(batch, float(now[0]))
        weight, due = self._weights(batch, needs)
        ranked = Ranked.of(values, row_of, rows)
        taken = ranked.taken(self._needed(batch, ranked, due, now, own))
        value = values if weight is None else values * weight[row_of]
        order = ranked.best if weight is None else np.argsort(-value)
        order = order[~taken[order]]
        first = len(near) - len(order)
        tokens = np.full(len(order) + 1, batch.decoding + float(value[taken].sum()))
        tokens[1:] += np.cumsum(value[order])
        tokens += float(paths[kept].sum())
        speed = float((tokens / plain[first:]).max())
        best = int(np.argmax(tokens - speed * now[first:]))
        kept[near[taken]] = True
        kept[near[order[: max(0, min(best, room - given - first))]]] = True
        return self.keep(found, kept, needs, room)

    def learn(self, done: Round, outcome: Outcome) -> None:
        self.count(done)
        if self._teaches and done.plan.choice is not None:
            self._expectations.overhear(done.plan.choice.situation, done.plan.choice.depth, outcome, usual=True)

    def _seconds(self, batch: Batch, nodes: int) -> tuple[Array, Array]:
        """Of a round but for drafting, by nodes verified from 0 on: without prompts in the pass, and as it is."""
        rows, prefill = batch.decoding, int(batch.chunk[batch.decoding :].sum())
        tokens = rows + np.arange(nodes + 1.0)
        if not self._expectations.known:
            return tokens, tokens + prefill  # nothing is known: time in tokens
        plain = self._expectations.verifying(rows, tokens)
        return plain, self._expectations.verifying(rows, tokens, prefill) if prefill else plain

    def _weights(self, batch: Batch, needs: Array) -> tuple[Array | None, Array]:
        """What a token of each row counts for, None: the same everywhere; and A(r) of those that can still be met."""
        if np.isnan(needs).all():
            return None, needs
        late = np.flatnonzero(needs > 0.0).tolist()
        given = needs <= 0.0
        given[[row for row in late if batch.rows[row].hopeless(batch.now, batch.fastest)]] = True
        return np.where(given, GIVEN, 1.0) if given.any() else None, np.where(given, 0.0, needs)

    def _needed(self, batch: Batch, ranked: Ranked, needs: Array, seconds: Array, own: Flags) -> Index:
        """By row: nodes that bring it up to date."""
        counts = np.zeros(len(needs), np.int64)
        late = np.flatnonzero((needs > 1.0) & ~own)
        if not len(late) or not self._expectations.known:
            return counts
        tpot = np.array([batch.rows[row].request.objective.tpot for row in late.tolist()])
        faint = ranked.paths[ranked.by_row] < FAINT
        useful = np.bincount(ranked.rows[~faint], minlength=len(needs))
        demands = np.where(np.isnan(needs) | own, 0.0, needs)
        each = np.minimum(wanted(ranked, demands, len(ranked.paths)), useful)
        order = late[np.argsort(each[late], kind="stable")]
        spent = np.cumsum(each[order])
        # With k rows served the round takes longer, and all of them need more for that.
        longer = seconds[np.minimum(spent, len(seconds) - 1)] - seconds[0]
        reach = _reach(ranked, each)[order]
        margin = (reach - needs[order]) * tpot[np.searchsorted(late, order)]  # seconds by which it may last longer
        met = np.tril(margin >= longer[:, None]).sum(axis=1)
        served = int(np.argmax(met)) + 1 if met.max() > 0 else 0
        counts[order[:served]] = each[order[:served]]
        return counts

    def forecast(
        self, rows: int, plain: int, width: int, seconds: Callable[[Array], Array], drafting: Array
    ) -> Forecast:
        """What is expected of rounds in which this chooses; see `Outlook`. Does not mutate what is known."""
        return self._outlook.forecast(rows, plain, width > 1, seconds, drafting)


def _reach(ranked: Ranked, counts: Index) -> Array:
    """Tokens that each row is expected to get with so many nodes."""
    chosen = ranked.place < counts[ranked.rows]
    found: Array = 1.0 + np.bincount(ranked.rows[chosen], ranked.paths[ranked.by_row][chosen], len(counts))
    return found


def own_rows(found: Candidates, rows: int) -> Flags:
    """Rows that drafted as deep as their requests ask, whose nodes are not chosen among."""
    own = np.zeros(rows, np.bool_)
    own[found.nodes.row_of[~found.free]] = True
    return own
