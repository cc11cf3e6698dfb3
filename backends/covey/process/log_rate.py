"""Limits how many log lines of a kind are written: whoever can cause one can cause a million."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

MOST, SECONDS = 20, 10.0  # lines of a kind in so long


class Rate:
    """Lets few lines of each kind through. A kind is what the code says, not what a caller sent."""

    def __init__(self, most: int = MOST, seconds: float = SECONDS, now: Callable[[], float] = time.monotonic) -> None:
        self._most, self._seconds, self._now = most, seconds, now
        self._kinds: dict[str, tuple[float, int]] = {}  # when its time began, and lines since
        self._lock = threading.Lock()

    def passes(self, kind: str, text: str) -> str | None:
        """Return the line to write, which says how many were left out before it; None for one that is left out."""
        now = self._now()
        with self._lock:
            began, lines = self._kinds.get(kind, (now, 0))
            left_out = max(0, lines - self._most)
            over = now - began >= self._seconds
            if over:
                began, lines = now, 0
            self._kinds[kind] = began, lines + 1
        if lines >= self._most:
            return None
        return f"{text} ({left_out} more of this kind were left out)" if over and left_out else text
