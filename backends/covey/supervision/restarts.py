"""Decides when a dead server is restarted: at once, then with exponential backoff, until it has died too often."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from covey_client.backoff import Backoff

WINDOW = 600.0  # seconds for which a death counts
MOST = 10  # deaths within the window
FIRST_REST, LONGEST_REST = 1.0, 60.0  # seconds of backoff; after the first death of a window there is none


class Restarts:
    """Counts deaths, and starts that failed."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._backoff = Backoff(FIRST_REST, LONGEST_REST, now)
        self._deaths: deque[float] = deque()

    def rest(self) -> float | None:
        """Note one more death. Return the seconds to wait before the next start, or None to give up."""
        now = self._now()
        while self._deaths and now - self._deaths[0] > WINDOW:
            self._deaths.popleft()
        before = len(self._deaths)
        self._deaths.append(now)
        return None if before >= MOST else self._backoff.after(before)
