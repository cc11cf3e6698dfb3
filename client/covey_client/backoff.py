"""Exponential backoff: each failure in a row doubles the rest before the next try, up to a limit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

_MOST_DOUBLINGS = 60  # more would overflow after hours of failures


class Backoff:
    """Owns the failures in a row of one thing that is tried again, and the end of its rest."""

    def __init__(self, first: float, longest: float, now: Callable[[], float] = time.monotonic) -> None:
        """The first rest takes `first` seconds, and none takes more than `longest`."""
        self._first, self._longest, self._now = first, longest, now
        self._failures = 0
        self._until = -math.inf

    @property
    def resting(self) -> bool:
        """Return whether the last rest goes on. Does not mutate."""
        return self._now() < self._until

    def after(self, failures: int) -> float:
        """Return the seconds to rest after `failures` in a row; 0 after none. Does not mutate."""
        return min(self._longest, self._first * 2.0 ** min(failures - 1, _MOST_DOUBLINGS)) if failures else 0.0

    def failed(self) -> float:
        """Note a failure and begin a rest. Return its seconds."""
        self._failures += 1
        seconds = self.after(self._failures)
        self.rest(seconds)
        return seconds

    def rest(self, seconds: float) -> None:
        """Begin a rest that is no failure, or of another length than the failures say."""
        self._until = self._now() + seconds

    def succeeded(self) -> None:
        """Make the next rest as short as the first. A rest that has begun goes on."""
        self._failures = 0
