"""Forecasts, from recent candidates, what rounds of each depth bring if the best nodes are chosen.

Of every depth the paths of the last candidates are kept, `ROWS` rows' worth. A round of n rows is expected to offer as
many of each likeness in proportion, and of them those will be chosen that are worth their time (`covey.planner.worth`).
A depth that nothing was drafted at is taken to be like the one before it, `FADING` times as likely.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from covey.contracts.types import Floats
from covey.trees.paths import Array, Index, Nodes

ROWS = 64
GROUPS = 24  # of paths alike, at a depth
FADING = 0.6


class Outlook:
    """Owns the candidates of recent rounds, by depth."""

    def __init__(self, max_depth: int) -> None:
        self._samples: list[deque[tuple[Floats, int]]] = [deque() for _ in range(max_depth)]
        self._of_row: tuple[Array, Array] | None = None

    def add(self, nodes: Nodes, paths: Floats) -> None:
        """Add a round's candidates. Nodes deeper than is planned are left out: a request may ask for more."""
        if not len(paths):
            return
        rows = int(np.count_nonzero(nodes.trees.sizes))
        by_depth = paths[np.argsort(nodes.depth.astype(np.uint8), kind="stable")]
        ends = np.bincount(nodes.depth).cumsum()
        planned = len(self._samples)
        for samples, start, end in zip(self._samples, ends[:planned].tolist(), ends[1 : planned + 1].tolist()):
            _append(samples, by_depth[start:end], rows)
        self._of_row = None

    def forecast(
        self, rows: int, plain: int, seconds: Callable[[Array], Array], drafting: Array
    ) -> tuple[Array, Array]:
        """Forecast rounds with `rows` rows that draft and `plain` that do not: their tokens and the nodes that will be
        verified, by depth from 0. `seconds` gives a round's time without drafting by the nodes in it, and `drafting`
        holds the time of drafting by depth."""
        more, nodes = self.of_row()
        more, nodes = more[: len(drafting)], nodes[: len(drafting)]
        tokens = plain + rows * (1.0 + more)
        values = tokens / np.maximum(1e-9, seconds(rows * nodes) + drafting[:, None])
        best = np.arange(len(drafting)), values.argmax(axis=1)
        return tokens[best], rows * nodes[best]

    def of_row(self) -> tuple[Array, Array]:
        """Return, by depth from 0, the tokens that the first of a row's nodes bring together, the likeliest first,
        and how many nodes those are."""
        if self._of_row is None:
            parts: list[tuple[Array, Array, Index]] = []
            paths, weight = np.ones(1), 1.0
            for depth, samples in enumerate(self._samples, start=1):
                if samples:
                    paths = np.sort(np.concatenate([each for each, _ in samples])).astype(np.float64)
                    groups = min(GROUPS, len(paths))
                    weight = len(paths) / sum(rows for _, rows in samples) / groups
                    bounds = np.arange(groups + 1) * len(paths) // groups
                    paths = np.add.reduceat(paths, bounds[:-1]) / np.diff(bounds)
                else:
                    paths = paths * FADING
                parts.append((paths, np.full(len(paths), weight), np.full(len(paths), depth)))
            values, weights, depths = (np.concatenate(column) for column in zip(*parts))
            order = np.argsort(-values, kind="stable")
            mine = weights[order] * (depths[order] <= np.arange(len(self._samples) + 1)[:, None])
            none = np.zeros((len(mine), 1))
            nodes = np.concatenate([none, mine.cumsum(axis=1)], axis=1)
            self._of_row = np.concatenate([none, (mine * values[order]).cumsum(axis=1)], axis=1), nodes
        return self._of_row


def _append(samples: deque[tuple[Floats, int]], paths: Floats, rows: int) -> None:
    samples.append((paths, rows))
    while sum(count for _, count in samples) - samples[0][1] >= ROWS:
        samples.popleft()
