"""Large grids: whole for `make test-all`, and a sample that covers every pair of values for `make test`."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Grid = Mapping[str, Sequence[Any]]
Row = dict[str, Any]


def whole(grid: Grid) -> list[Row]:
    """Every combination."""
    return [dict(zip(grid, values)) for values in itertools.product(*grid.values())]


def pairwise(grid: Grid, seed: int = 0, *, cost: Callable[[Row], float] = lambda _row: 0.0) -> list[Row]:
    """Combinations in which every two values of different dimensions meet at least once: greedily, the candidate that
    brings most new pairs, the cheapest of several."""
    rng = random.Random(seed)
    names = list(grid)
    missing = {
        (one, left, two, right)
        for one, two in itertools.combinations(names, 2)
        for left in grid[one]
        for right in grid[two]
    }
    chosen = []
    while missing:
        one, left, two, right = rng.choice(sorted(missing, key=repr))
        candidates = []
        for _ in range(40):
            row = {name: rng.choice(list(grid[name])) for name in names}
            row[one], row[two] = left, right
            candidates.append((len(_pairs(row, names) & missing), row))
        best = max(candidates, key=lambda candidate: (candidate[0], -cost(candidate[1])))[1]
        missing -= _pairs(best, names)
        chosen.append(best)
    return chosen


def _pairs(row: Row, names: list[str]) -> set[tuple[str, Any, str, Any]]:
    return {(one, row[one], two, row[two]) for one, two in itertools.combinations(names, 2)}
