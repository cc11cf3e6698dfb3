"""Decides when a server that has died is started again: at once, then after rests that grow, and not for ever."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

WINDOW = 600.0  # seconds in which deaths count
MOST = 10  # deaths in it
FIRST_REST, LONGEST_REST = 1.0, 60.0  # seconds; the first death of a window is followed by none


class Restarts:
    """Counts deaths, and starts that failed."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._deaths: deque[float] = deque()

    def rest(self) -> float | None:
        """Note one more death, and return how long to wait before the next start; None if there is none."""
        now = self._now()
        while self._deaths and now - self._deaths[0] > WINDOW:
            self._deaths.popleft()
        before = len(self._deaths)
        self._deaths.append(now)
        if before >= MOST:
            return None
        return min(FIRST_REST * 2.0 ** (before - 1), LONGEST_REST) if before else 0.0
