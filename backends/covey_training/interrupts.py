"""Lets signals end a training only between two steps, so that the checkpoint is complete."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from typing import Any


@contextmanager
def held_back() -> Iterator[Event]:
    """Defer the first SIGINT or SIGTERM: it sets the event, and raises KeyboardInterrupt at the end of the block. A
    second one has its former effect. Only for the main thread."""
    held = Event()
    former: dict[int, Any] = {}

    def restore() -> None:
        for number, handler in former.items():
            signal.signal(number, handler)

    def hold(_number: int, _frame: object) -> None:
        held.set()
        restore()

    former |= {number: signal.signal(number, hold) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield held
    finally:
        restore()
    if held.is_set():
        raise KeyboardInterrupt
