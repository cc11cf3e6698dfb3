"""Selection of nodes against brute force, and what always holds of it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from covey.contracts.types import Trees
from covey.trees.paths import LEAST, MOST, Nodes
from covey.trees.selection import Ranked, customised, filled, wanted


def forest(rng: np.random.Generator, rows: int, most: int) -> Trees:
    """Random trees, some of them empty; a parent comes before its children."""
    sizes = rng.integers(0, most + 1, rows)
    parents = [rng.integers(-1, index) if index else -1 for size in sizes for index in range(size)]
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    tokens = np.arange(sizes.sum(), dtype=np.int32)
    return Trees(offsets, tokens, np.array(parents, np.int32), np.zeros(len(tokens), np.float32))


def ranked(trees: Trees, own: np.ndarray) -> tuple[Nodes, Ranked]:
    nodes = Nodes.of(trees)
    return nodes, Ranked.of(nodes.paths(own), nodes.row_of, trees.rows)


def connected(nodes: Nodes, kept: np.ndarray) -> bool:
    return bool((~kept | np.append(kept, True)[nodes.above]).all())


@pytest.mark.parametrize("seed", range(60))
def test_the_best_nodes_are_worth_as_much_as_any_choice(seed: int) -> None:
    """Of all that hang together within the budget."""
    rng = np.random.default_rng(seed)
    trees = forest(rng, 3, 4)
    own = rng.uniform(0.05, 0.95, len(trees.tokens))
    nodes, order = ranked(trees, own)
    count, budget = len(own), int(rng.integers(0, 9))
    choices = (np.array(chosen, np.bool_) for chosen in itertools.product((False, True), repeat=count))
    best = max(order.paths[kept].sum() for kept in choices if kept.sum() <= budget and connected(nodes, kept))
    found = filled(order, np.zeros(count, np.bool_), budget)
    assert connected(nodes, found)
    assert found.sum() <= budget
    assert order.paths[found].sum() == pytest.approx(best)


@pytest.mark.parametrize("seed", range(60))
def test_a_selection_hangs_together_and_keeps_to_its_budget(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(1, 12))
    trees = forest(rng, rows, 12)
    nodes, order = ranked(trees, rng.uniform(0, 1, len(trees.tokens)) ** 2)
    demands, most = rng.uniform(-2, 5, rows), int(rng.integers(0, 8))
    before = np.zeros(len(order.paths), np.bool_)
    value = 0.0
    for budget in range(0, len(order.paths) + 3):
        counts = customised(order, demands, demands, budget, most)
        assert counts.sum() <= budget
        assert (counts <= most).all()
        kept = filled(order, order.taken(counts), budget)
        assert kept.sum() == min(budget, len(order.paths))
        assert connected(nodes, kept)
        now = float(order.paths[kept].sum())
        assert now >= value - 1e-12, "more budget brings no less"
        assert now >= order.paths[order.taken(counts)].sum() - 1e-12
        before, value = kept, now
    assert before.all()


def test_rows_are_served_by_descending_demand_until_the_budget_is_spent() -> None:
    trees = Trees.chains([[0, 1, 2], [3, 4, 5]])
    _, order = ranked(trees, np.array([0.5, 0.6, 0.5, 0.9, 0.9, 0.9]))
    for needs, budget, most, counts in (
        ([1.6, 1.3], 4, 8, [2, 1]),  # the example of the module
        ([1.6, 1.3], 1, 8, [1, 0]),
        ([1.3, 1.6], 1, 8, [0, 1]),
        ([9.0, 9.0], 6, 2, [2, 2]),  # at most so many each
    ):
        assert customised(order, np.array(needs), np.array(needs), budget, most).tolist() == counts
    behind, capped = np.array([7.0, 9.0]), np.array([4.0, 4.0])
    assert customised(order, behind, capped, 2, 8).tolist() == [0, 2], (
        "whoever is further behind, what both may ask for"
    )
    assert wanted(order, np.array([1.0, -3.0]), 8).tolist() == [0, 0], "the root counts as one token"


def test_a_paths_probability_is_the_product_and_falls_at_every_node() -> None:
    rng = np.random.default_rng(5)
    trees = forest(rng, 6, 20)
    own = rng.choice([0.0, 1e-9, 0.3, 1.0, 2.0], len(trees.tokens))
    nodes = Nodes.of(trees)
    paths = nodes.paths(own)
    for index, (row, parent) in enumerate(zip(nodes.row_of, trees.parents)):
        above = 1.0 if parent < 0 else paths[trees.offsets[row] + parent]
        assert paths[index] == pytest.approx(above * min(MOST, max(LEAST, own[index])))
        assert paths[index] < above
    assert np.isfinite(np.log(nodes.paths(np.zeros(len(own))))).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30, 5.0])
def test_whatever_a_drafter_says_of_its_nodes_is_taken_for_a_probability(bad: float) -> None:
    trees = replace(Trees.chains([[0, 1, 2]]), scores=np.array([-0.5, bad, -1.0], np.float32))
    nodes = Nodes.of(trees)
    own = nodes.own(trees.scores)
    assert ((own >= LEAST) & (own <= MOST)).all()
    assert own[0] == pytest.approx(np.exp(-0.5))
    assert connected(nodes, filled(Ranked.of(nodes.paths(own), nodes.row_of, 1), np.zeros(3, np.bool_), 2))


@pytest.mark.parametrize("seed", range(20))
def test_nodes_are_accepted_along_one_path(seed: int) -> None:
    """As the target walks: a node counts if all before it do and the answer says its token."""
    rng = np.random.default_rng(seed)
    trees = forest(rng, 5, 9)
    nodes = Nodes.of(trees)
    offsets, tokens, accepted, right = [0], [], [], set()
    for row in range(trees.rows):
        start, node, path = int(trees.offsets[row]), -1, []
        while True:
            below = [n for n in range(start, int(trees.offsets[row + 1])) if nodes.above[n] == node]
            if not below or rng.random() < 0.3:
                break
            node = int(rng.choice(below))
            path.append(node)
        right |= set(path)
        accepted.append(len(path))
        tokens += [int(trees.tokens[n]) for n in path] + [999]
        offsets.append(len(tokens))
    arrays = (np.array(values, np.int32) for values in (offsets, tokens, accepted))
    found = nodes.accepted(trees, *arrays)
    assert set(np.flatnonzero(found).tolist()) == right
