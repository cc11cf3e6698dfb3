"""Limits how many log lines of a kind are written, since a client that causes one can cause a million."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

MOST, SECONDS = 20, 10.0  # at most MOST lines of a kind in SECONDS seconds


class Rate:
    """Limits the lines of each kind. A kind is a text of the code, not a caller's."""

    def __init__(self, most: int = MOST, seconds: float = SECONDS, now: Callable[[], float] = time.monotonic) -> None:
        self._most, self._seconds, self._now = most, seconds, now
        self._kinds: dict[str, tuple[float, int]] = {}  # start of its period, and lines since
        self._lock = threading.Lock()

    def passes(self, kind: str, text: str) -> str | None:
        """Return the line to write, with the number of lines left out before it; None to leave it out."""
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
