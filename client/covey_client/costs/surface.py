"""Interpolates between the measured cells of a cost table, and extrapolates beyond them."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence

from covey_client.costs.table import Cell


class Surface:
    """Seconds over (first, second): linear between the cells of each first coordinate, then between neighbouring ones.
    A cell given twice counts with its mean. Beyond the cells the lines go on, never below zero."""

    def __init__(self, cells: Iterable[Cell]) -> None:
        """Raises ValueError if there is no cell."""
        curves: dict[int, dict[int, list[float]]] = {}
        for first, second, seconds in cells:
            curves.setdefault(first, {}).setdefault(second, []).append(seconds)
        if not curves:
            raise ValueError("a cost table without cells says nothing about time")
        self._firsts = sorted(curves)
        self._curves = [
            [(second, sum(times) / len(times)) for second, times in sorted(curves[first].items())]
            for first in self._firsts
        ]

    def __call__(self, first: float, second: float) -> float:
        """Return the seconds at this place. Does not mutate."""
        points = [(at, _line(curve, second)) for at, curve in zip(self._firsts, self._curves)]
        return max(0.0, _line(points, first))


def _line(points: Sequence[tuple[float, float]], at: float) -> float:
    if len(points) == 1:
        return points[0][1]
    index = min(max(1, bisect.bisect_left(points, (at, 0.0))), len(points) - 1)
    (left, low), (right, high) = points[index - 1], points[index]
    return low + (high - low) * (at - left) / (right - left)
