"""Real time."""

from __future__ import annotations

import time


class RealClock:
    """Implements `covey.contracts.ports.Clock`."""

    def now(self) -> float:
        return time.perf_counter()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
