"""Waiting for what a test has set going."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(holds: Callable[[], T], said: Callable[[], object] = str, seconds: float = 60.0) -> T:
    """Ask again and again until the answer is true, and return it. What never becomes true fails the test, with what
    `said` says then."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline, said() or f"it did not come about within {seconds:g} s"
        time.sleep(0.01)
    return found
