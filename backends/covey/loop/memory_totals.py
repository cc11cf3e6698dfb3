"""Totals of memory moves: how many, how long they took, and how long rounds waited for them."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator

PAUSES = 1024  # kept per operation


class MemoryTotals:
    """Written by one thread, read by any."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = defaultdict(int)
        self._seconds: dict[str, float] = defaultdict(float)
        self._pauses: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=PAUSES))

    def count(self, operation: str, outcome: str, seconds: float = 0.0) -> None:
        """Count an operation that ended after `seconds`."""
        self._counts[operation, outcome] += 1
        self._seconds[operation] += seconds

    def paused(self, operation: str, seconds: float) -> None:
        """Note that a round waited `seconds` for a step of an operation."""
        self._pauses[operation].append(seconds)
        self._seconds[operation] += seconds

    def operations(self) -> dict[str, int]:
        return {f"{operation} {outcome}": count for (operation, outcome), count in self._counts.copy().items()}

    def pauses(self) -> dict[str, list[float]]:
        return {operation: list(pauses) for operation, pauses in self._pauses.copy().items()}

    def figures(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Yield metric, labels, value."""
        for (operation, outcome), count in self._counts.copy().items():
            yield "covey_memory_operations_total", {"operation": operation, "outcome": outcome}, count
        for operation, seconds in self._seconds.copy().items():
            yield "covey_memory_seconds_total", {"operation": operation}, seconds
