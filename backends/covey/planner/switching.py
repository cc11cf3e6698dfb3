"""Estimates C_switch(lag, batch): the time a drafter takes to read tokens it has missed, before it can draft again.

It is a table over lag and batch size with linear interpolation. It starts from the cost table, if there is one, and
every measured catch-up refines it. Without any measurement it is zero. See Nightjar v2, section 4.2, "Prefill Cost
Modeling"; the paper's table is measured once and never refined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from covey.planner.regression import Array, Regression, hat, smooth
from covey_client.costs.surface import Surface
from covey_client.costs.table import Cell

LAGS = np.array((1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0))
BATCHES = np.array((1.0, 4.0, 16.0, 64.0, 256.0))


class SwitchCost:
    """Callable as `SwitchCost()(lag, rows) -> seconds`."""

    def __init__(self, measured: Iterable[Cell] = ()) -> None:
        """`measured` has entries of lag, rows and seconds."""
        lags, batches = np.meshgrid(LAGS, BATCHES, indexing="ij")
        shape = (0.2 + lags * batches / 4096.0).ravel()
        doubt = np.kron(smooth(len(LAGS), 3.0, 1.0), smooth(len(BATCHES), 3.0, 0.5))
        self._model = Regression(shape, doubt * np.outer(shape, shape), noise=0.2)
        for lag, rows, seconds in measured:
            self.observe(lag, rows, seconds)

    def __call__(self, lag: int, rows: int) -> float:
        """Return the seconds. Does not mutate."""
        if not self._model.scaled or lag <= 0:
            return 0.0
        return max(0.0, float(self._model.mean(self._features(lag, rows))))

    def observe(self, lag: int, rows: int, seconds: float) -> None:
        """Learn from a measured catch-up."""
        if lag > 0 and rows > 0 and seconds > 0:
            self._model.update(self._features(lag, rows), seconds)

    def _features(self, lag: int, rows: int) -> Array:
        return np.outer(hat(float(lag), LAGS), hat(float(rows), BATCHES)).ravel()


class SwitchCosts:
    """Owns the switching costs of all drafters."""

    def __init__(self, measured: Mapping[str, Iterable[Cell]] | None = None, first: str = "") -> None:
        """`first` is the drafter for policies that know only one."""
        cells = {name: tuple(cells) for name, cells in (measured or {}).items()}
        self._of = {name: SwitchCost(each) for name, each in cells.items()}
        own = cells.get(first, ())
        self.measured: Callable[[int, int], float] = Surface(own) if own else _nothing
        """The first drafter's costs as measured beforehand, never refined."""

    def of(self, drafter: str) -> SwitchCost:
        """Return a drafter's costs; create them on first use."""
        if drafter not in self._of:
            self._of[drafter] = SwitchCost()
        return self._of[drafter]


def _nothing(_lag: int, _rows: int) -> float:
    return 0.0
