"""AdaServe's budgets and constants by grid search: what would serve best on a device of these costs.

Every candidate serves batches of each size that was measured, for one round, as its equations and its selection say, on
trees that the recorded guesses draft. Rows are urgent, chats and summaries in the mix of the paper, and all of them are
on time so far: A(r) is what the round itself takes over their objective. A candidate is worth

    mean over batch sizes of log( sum over classes of rows * E / t * min(1, E * tpot / t) )

E being the tokens that a row of the class gets on average and t the round's seconds: tokens per second, of which those
of a class that falls behind count the less the more it does. Guesses are right as often as recorded, not as often as
this server's drafter: `speculation.adaserve` says otherwise where somebody knows better.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from covey.bandits.length import Situation
from covey.contracts import profile
from covey.emulated.guesses import Guesser, Guesses
from covey.emulated.hash_model import HashModel
from covey.planner.adaserve import DEFAULTS, AdaServe, knee, selected
from covey.trees.paths import Array, Flags, Index, Nodes
from covey.trees.selection import Ranked
from covey_client.costs.surface import Surface
from covey_client.costs.table import CostTable

SLACKS = (1.05, 1.1, 1.2, 1.4, 1.7, 2.0)  # b1: tokens of a pass that takes so many times as long as one over one
LANES, FEWER, WIDER, MOST = (8, 16, 32, 64, 128), (0, 8, 20, 40), (0, 1), (2, 4, 8)  # b2, c1, c2, n_max
SHARES, OBJECTIVES = (0.6, 0.2, 0.2), (1.2, 0.05, 0.15)  # seconds; the first in times of an idle server's token
ROWS = 48  # of each batch size, in so many rounds as that takes
GUESSES = "bundled"
MODEL = HashModel(32000, low=8)
SUBJECTS = ("code", "chat", "summary")


@dataclass(frozen=True, slots=True)
class _Drafted:
    """The candidates of one batch, and which of them are right."""

    nodes: Nodes
    ranked: Ranked
    right: Flags
    deepest: Array


def searched(costs: CostTable, drafter: str, max_depth: int, max_width: int) -> dict[str, int]:
    """Return the constants that are best by the guesses recorded on the bundled pair."""
    guesses = Guesses.load(profile.guesses_file(GUESSES))
    return Search(costs, drafter, guesses, max_depth=max_depth, max_width=max_width).best()


class Search:
    """`drafter`: whose costs count."""

    def __init__(self, costs: CostTable, drafter: str, guesses: Guesses, *, max_depth: int, max_width: int) -> None:
        self._costs = costs
        self._verify, self._draft = Surface(costs.verify), Surface(costs.draft[drafter])
        self._overhead = Surface((1, rows, seconds) for rows, seconds in costs.overhead or ((1, 0.0),))
        self._guesses, self._max_depth, self._max_width = guesses, max_depth, max_width
        self._sizes = sorted({rows for rows, _, _ in costs.verify})
        idle = self._verify(1, 1) + self._overhead(1, 1)
        self._tpot = np.array([OBJECTIVES[0] * idle, *OBJECTIVES[1:]])
        self._trees: dict[tuple[int, int, int, int], _Drafted] = {}

    def best(self) -> dict[str, int]:
        """Return the constants of most worth, of those alike the first."""
        found: dict[tuple[object, ...], tuple[float, dict[str, int]]] = {}
        budgets = sorted({knee(self._costs, slack) for slack in SLACKS})
        for b1, b2, c1, c2, most in itertools.product(budgets, LANES, FEWER, WIDER, MOST):
            constants = {**DEFAULTS, "b1": b1, "b2": b2, "c1": c1, "c2": c2, "n_max": most}
            shapes = tuple(self._shape(constants, rows) for rows in self._sizes)
            key = b1, most, shapes
            if key not in found:
                found[key] = self.worth(constants), constants
        return max(found.values(), key=lambda each: each[0])[1]

    def worth(self, constants: Mapping[str, int]) -> float:
        """Return the worth of these constants, as this module's docstring defines it."""
        return sum(math.log(self._goodput(constants, rows)) for rows in self._sizes) / len(self._sizes)

    def _shape(self, constants: Mapping[str, int], rows: int) -> tuple[int, int]:
        policy = AdaServe(
            self._max_depth, self._max_width, None, (f"{key}={value}" for key, value in constants.items())
        )
        return policy.choose(Situation(rows, self._max_depth)), policy.width or 1

    def _goodput(self, constants: Mapping[str, int], rows: int) -> float:
        depth, width = self._shape(constants, rows)
        allowed = max(0, constants["b1"] - rows)
        rounds = -(-ROWS // rows)
        drafting = self._draft(rows * width, depth) + self._overhead(1, rows)
        kinds = _kinds(rows * rounds)
        tokens, seconds = np.ones(rows * rounds), 0.0
        for turn in range(rounds):
            offered, mine = self._offered(rows, depth, width, turn), slice(turn * rows, (turn + 1) * rows)
            took = drafting + self._verify(rows, rows + min(allowed, len(offered.right)))
            needs = took / self._tpot[kinds[mine]]
            demands = np.minimum(needs, offered.deepest + 1.0)
            kept = selected(offered.ranked, needs, demands, allowed, constants["n_max"], np.zeros_like(offered.right))
            tokens[mine] += np.bincount(offered.nodes.row_of[kept & offered.right], minlength=rows)
            seconds += drafting + self._verify(rows, rows + int(np.count_nonzero(kept)))
        took, total = seconds / rounds, 0.0
        for kind, tpot in enumerate(self._tpot.tolist()):
            each = float(tokens[kinds == kind].mean())
            total += rows * SHARES[kind] * each / took * min(1.0, each * tpot / took)
        return total

    def _offered(self, rows: int, depth: int, width: int, turn: int) -> _Drafted:
        key = rows, depth, width, turn
        if key not in self._trees:
            states = np.random.default_rng([rows, turn]).integers(0, 1 << 63, rows).astype(np.uint64)
            kinds = _kinds(rows * (turn + 1))[-rows:]
            subjects = np.array([self._guesses.subject(name) for name in SUBJECTS])[kinds]
            shape = np.full(rows, depth, np.int32), np.full(rows, width, np.int32)
            trees = Guesser(self._guesses, MODEL, 1).trees(states, subjects, *shape)
            nodes = Nodes.of(trees)
            text = np.empty((rows, depth), np.int32)
            for place in range(depth):
                tokens = MODEL.nexts(states)
                text[:, place], states = tokens, MODEL.states(tokens, states)
            whole = np.full(rows, depth, np.int32)
            right = nodes.accepted(trees, np.arange(rows, dtype=np.int32) * depth, text.ravel(), whole)
            paths = nodes.paths(nodes.own(trees.log_q).astype(np.float64))
            ranked = Ranked.of(paths, nodes.row_of, rows)
            self._trees[key] = _Drafted(nodes, ranked, right, np.full(rows, float(depth)))
        return self._trees[key]


def _kinds(count: int) -> Index:
    """Return `count` classes in the mix's shares, evenly spread."""
    turns: Sequence[int] = (0, 1, 0, 2, 0)
    return np.resize(np.array(turns), count)
