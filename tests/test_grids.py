from __future__ import annotations

import itertools

from tests.grids import pairwise, whole

GRID = {"a": [1, 2, 3], "b": ["x", "y"], "c": list(range(5)), "d": [True, False]}


def test_the_sample_covers_every_pair_and_is_small() -> None:
    rows = pairwise(GRID)
    for one, two in itertools.combinations(GRID, 2):
        met = {(row[one], row[two]) for row in rows}
        assert met == set(itertools.product(GRID[one], GRID[two]))
    assert len(rows) < len(whole(GRID)) / 2
    assert rows == pairwise(GRID), "the same every time"


def test_the_whole_is_every_combination() -> None:
    assert len(whole(GRID)) == 3 * 2 * 5 * 2
