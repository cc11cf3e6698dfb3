"""The walk against a recursive walker, on random forests."""

from __future__ import annotations

import numpy as np
import pytest

from covey.contracts.types import Ints, Trees
from covey.trees.verify import check_chains, walk, walk_chains


def forest(rng: np.random.Generator, rows: int, largest: int, vocab: int, chains: bool = False) -> Trees:
    sizes = rng.integers(0, largest + 1, rows)
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    parents = [i - 1 if chains else int(rng.integers(-1, i)) for size in sizes for i in range(size)]
    tokens = rng.integers(0, vocab, len(parents))
    return Trees(offsets, tokens.astype(np.int32), np.array(parents, np.int32))


def recursive(trees: Trees, draws: Ints, row: int) -> tuple[list[int], list[int], list[int]]:
    """Tokens, places and accepted nodes of one row, one node at a time."""
    start, stop = int(trees.offsets[row]), int(trees.offsets[row + 1])
    first_place = start + row

    def go(node: int) -> tuple[list[int], list[int], list[int]]:
        place = first_place + node + 1
        token = int(draws[place])
        for child in range(stop - start):
            if trees.parents[start + child] == node and trees.tokens[start + child] == token:
                tokens, places, path = go(child)
                return [token, *tokens], [place, *places], [start + child, *path]
        return [token], [place], []

    return go(-1)


@pytest.mark.parametrize("largest", [0, 1, 5, 24])
@pytest.mark.parametrize("vocab", [2, 4])
def test_walk_equals_the_recursive_walker(largest: int, vocab: int) -> None:
    rng = np.random.default_rng(largest * 10 + vocab)
    for rows in (0, 1, 2, 33):
        for _ in range(20):
            trees = forest(rng, rows, largest, vocab)
            draws = rng.integers(-1, vocab, len(trees.tokens) + rows).astype(np.int32)
            got = walk(trees, draws)
            assert got.accepted.dtype == got.offsets.dtype == got.tokens.dtype == got.path.dtype == np.int32
            assert len(got.accepted) == rows
            for row in range(rows):
                tokens, places, path = recursive(trees, draws, row)
                span = slice(got.offsets[row], got.offsets[row + 1])
                assert got.tokens[span].tolist() == tokens
                assert got.places[span].tolist() == places
                assert got.path[got.offsets[row] - row : got.offsets[row + 1] - row - 1].tolist() == path
                assert got.accepted[row] == len(path)


def test_chains_stop_at_the_first_refusal() -> None:
    rng = np.random.default_rng(1)
    for rows in (0, 1, 9):
        for _ in range(30):
            trees = forest(rng, rows, 5, 9, chains=True)
            accepts = rng.random(len(trees.tokens)) < 0.7
            alternates = rng.integers(100, 200, rows).astype(np.int32)
            got = walk_chains(trees, accepts, alternates)
            for row in range(rows):
                drafted = trees.tokens[trees.offsets[row] : trees.offsets[row + 1]].tolist()
                flags = accepts[trees.offsets[row] : trees.offsets[row + 1]].tolist()
                count = flags.index(False) if False in flags else len(flags)
                assert got.accepted[row] == count
                span = slice(got.offsets[row], got.offsets[row + 1])
                assert got.tokens[span].tolist() == [*drafted[:count], alternates[row]]
                assert got.places[span].tolist() == [trees.offsets[row] + row + i for i in range(count + 1)]
                path = got.path[got.offsets[row] - row : got.offsets[row + 1] - row - 1]
                assert path.tolist() == [trees.offsets[row] + i for i in range(count)]


def test_trees_are_refused_under_rejection() -> None:
    tree = Trees(np.array([0, 2], np.int32), np.array([1, 2], np.int32), np.array([-1, -1], np.int32))
    with pytest.raises(ValueError, match="chains"):
        check_chains(tree)
    with pytest.raises(ValueError, match="chains"):
        walk_chains(tree, np.array([True, True]), np.array([3], np.int32))
