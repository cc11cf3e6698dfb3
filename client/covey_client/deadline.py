"""Deadlines of calls; None is for ever."""

from __future__ import annotations

import time
from dataclasses import dataclass

from covey_client.errors import DeadlineExceeded


@dataclass(frozen=True)
class Deadline:
    """A moment, and the `seconds` that the caller had asked for."""

    at: float | None
    seconds: float | None

    @classmethod
    def after(cls, seconds: float | None) -> Deadline:
        return cls(None if seconds is None else time.monotonic() + seconds, seconds)

    def left(self) -> float | None:
        """Return the seconds that are left; raises DeadlineExceeded if it has passed."""
        if self.at is None:
            return None
        left = self.at - time.monotonic()
        if left <= 0:
            raise self.error()
        return left

    def error(self) -> DeadlineExceeded:
        return DeadlineExceeded(f"no complete answer within {self.seconds:g} s")
