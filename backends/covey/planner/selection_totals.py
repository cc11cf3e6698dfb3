"""Counts what selections did, for metrics."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from covey.trees.paths import Array

NEEDS = np.array([0.0, 1.0, 2.0, 4.0, 8.0])  # tokens of a round
LABELS = (*(f"{edge:g}" for edge in NEEDS), "+Inf")


class SelectionTotals:
    """Running totals; the engine's thread adds to them once a round, any thread may read them."""

    def __init__(self) -> None:
        self._nodes = {"proposed": 0, "selected": 0, "accepted": 0}
        self._budget = {"used": 0, "allowed": 0}
        self._needs = np.zeros(len(LABELS), np.int64)

    def selected(self, proposed: int, selected: int, allowed: int, needs: Array) -> None:
        """Count a selection. `needs` are A(r) of rows with an objective; `allowed` nodes had room."""
        self._nodes["proposed"] += proposed
        self._nodes["selected"] += selected
        self._budget["used"] += selected
        self._budget["allowed"] += max(allowed, selected)
        self._needs += np.bincount(np.searchsorted(NEEDS, needs), minlength=len(LABELS))

    def accepted(self, nodes: int) -> None:
        self._nodes["accepted"] += nodes

    def figures(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Yield metric, labels and value so far. Does not mutate."""
        for stage, nodes in self._nodes.items():
            yield "covey_tree_nodes_total", {"stage": stage}, nodes
        for of, tokens in self._budget.items():
            yield "covey_tree_budget_tokens_total", {"of": of}, tokens
        for label, rows in zip(LABELS, self._needs.tolist()):
            yield "covey_slo_needs_total", {"needs": label}, rows
