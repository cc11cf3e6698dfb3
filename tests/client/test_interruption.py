"""Signals that end long commands."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from covey_client import interruption


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Have a signal mean afterwards what it meant before."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_signal_right_after_one_interrupts_nothing_and_a_later_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    interruption.by_signals()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
    now += 0.6 * interruption.SAME_SECONDS
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGINT)
    now += 0.6 * interruption.SAME_SECONDS
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
