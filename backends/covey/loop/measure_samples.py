"""Makes a cost table from measured rounds: medians by shape. Does not know how the rounds were run."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from covey.requests.rounds import RoundRecord
from covey_client.costs.table import CostTable

LEAST = 1e-6  # seconds: a cost table allows no zero


class Samples:
    """Seconds by key. `verify`: (rows, tokens); `overhead`, `plain`: rows; `draft`: (drafter, rows, depth); `switch`:
    (drafter, lag, rows)."""

    def __init__(self) -> None:
        self.verify: defaultdict[tuple[int, int], list[float]] = defaultdict(list)
        self.overhead: defaultdict[int, list[float]] = defaultdict(list)
        self.plain: defaultdict[int, list[float]] = defaultdict(list)
        self.draft: defaultdict[tuple[str, int, int], list[float]] = defaultdict(list)
        self.switch: defaultdict[tuple[str, int, int], list[float]] = defaultdict(list)

    def decoded(self, rows: int, depth: int, drafter: str, rounds: Iterable[RoundRecord]) -> None:
        """Add rounds in which `rows` rows drafted `depth` tokens each. `drafter` is ignored at depth 0."""
        for each in rounds:
            aside = each.plan_seconds + each.commit_seconds
            self.verify[rows, rows * (depth + 1)].append(each.verify_seconds)
            self.overhead[rows].append(aside)
            if depth:
                self.draft[drafter, rows, depth].append(each.draft_seconds - each.catch_up_seconds)
            else:
                self.plain[rows].append(aside + each.draft_seconds + each.verify_seconds)

    def began(self, drafter: str, lag: int, rows: int, seconds: float) -> None:
        """Note how long it took `rows` rows to catch up and begin to draft together."""
        self.switch[drafter, lag, rows].append(seconds)

    def table(self, name: str, origin: str) -> CostTable:
        return CostTable(
            name=name,
            origin=origin,
            verify=tuple((*key, seconds) for key, seconds in _medians(self.verify)),
            overhead=tuple(_medians(self.overhead)),
            draft=_by_drafter(self.draft),
            switch=_by_drafter(self.switch),
            plain=tuple(_medians(self.plain)),
        )


def _medians(samples: defaultdict[Any, list[float]]) -> list[tuple[Any, float]]:
    return [(key, float(f"{max(LEAST, statistics.median(times)):.4g}")) for key, times in sorted(samples.items())]


def _by_drafter(
    samples: defaultdict[tuple[str, int, int], list[float]],
) -> dict[str, tuple[tuple[int, int, float], ...]]:
    cells_of: dict[str, list[tuple[int, int, float]]] = {}
    for (drafter, first, second), seconds in _medians(samples):
        cells_of.setdefault(drafter, []).append((first, second, seconds))
    return {drafter: tuple(cells) for drafter, cells in cells_of.items()}
