"""Interrupts long commands by Ctrl-C or SIGTERM, once."""

from __future__ import annotations

import signal
import time
from types import FrameType

SAME_SECONDS = 2.0  # signals this soon after one are the same request: `timeout` sends two


def by_signals() -> None:
    """Have both signals raise KeyboardInterrupt in the main thread. A shell makes its background jobs ignore Ctrl-C."""
    last = float("-inf")

    def raise_once(_number: int, _frame: FrameType | None) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > SAME_SECONDS:
            last = now
            raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, raise_once)
