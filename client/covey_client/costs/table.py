"""From rounds to a cost table: medians by shape."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from covey_client.costs.bench import Beginning
from covey_client.costs.shapes import Batch, Prefill
from covey_client.reports import Round

if TYPE_CHECKING:
    from covey.planner.cost_table import CostTable

K = TypeVar("K", bound=Hashable)
LEAST = 1e-6  # seconds: a table knows no zero


class Samples:
    """Seconds by what they are of. `verify`: (rows, tokens); `overhead`, `plain`: rows; `draft`: (drafter, rows,
    depth); `switch`: (drafter, lag, rows); `prefill`: tokens."""

    def __init__(self) -> None:
        self.verify: defaultdict[tuple[int, int], list[float]] = defaultdict(list)
        self.overhead: defaultdict[int, list[float]] = defaultdict(list)
        self.plain: defaultdict[int, list[float]] = defaultdict(list)
        self.draft: defaultdict[tuple[str, int, int], list[float]] = defaultdict(list)
        self.switch: defaultdict[tuple[str, int, int], list[float]] = defaultdict(list)
        self.prefill: defaultdict[int, list[float]] = defaultdict(list)

    def decoded(self, shape: Batch, rounds: Iterable[Round]) -> None:
        for each in rounds:
            aside = each.plan_seconds + each.commit_seconds
            self.verify[shape.rows, shape.rows * (shape.depth + 1)].append(each.verify_seconds)
            self.overhead[shape.rows].append(aside)
            if shape.depth:
                drafting = each.draft_seconds - each.catch_up_seconds
                self.draft[shape.drafter, shape.rows, shape.depth].append(drafting)
            else:
                self.plain[shape.rows].append(aside + each.draft_seconds + each.verify_seconds)

    def read(self, shape: Prefill, rounds: Iterable[Round]) -> None:
        for each in rounds:
            self.prefill[shape.tokens].append(each.verify_seconds)

    def began(self, drafter: str, found: Beginning) -> None:
        self.switch[drafter, found.lag, found.rows].append(found.seconds)

    def table(self, name: str, origin: str) -> CostTable:
        from covey.planner.cost_table import CostTable

        return CostTable(
            name=name,
            origin=origin,
            verify=tuple((*key, seconds) for key, seconds in _medians(self.verify)),
            overhead=tuple(_medians(self.overhead)),
            draft=_by_drafter(self.draft),
            switch=_by_drafter(self.switch),
            prefill=tuple(_medians(self.prefill)),
            plain=tuple(_medians(self.plain)),
        )


def _medians(samples: defaultdict[Any, list[float]]) -> list[tuple[Any, float]]:
    return [(key, float(f"{max(LEAST, statistics.median(found)):.4g}")) for key, found in sorted(samples.items())]


def _by_drafter(
    samples: defaultdict[tuple[str, int, int], list[float]],
) -> dict[str, tuple[tuple[int, int, float], ...]]:
    found: dict[str, list[tuple[int, int, float]]] = {}
    for (drafter, first, second), seconds in _medians(samples):
        found.setdefault(drafter, []).append((first, second, seconds))
    return {drafter: tuple(cells) for drafter, cells in found.items()}
