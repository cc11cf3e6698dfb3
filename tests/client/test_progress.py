"""Long commands: their progress where there is no terminal, and signals that end them."""

from __future__ import annotations

import io
import signal
import time
from collections.abc import Iterator

import pytest
from rich.console import Console

from covey_client import interruption
from covey_client.progress import Steps, status


def lines(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_a_line_for_each_step() -> None:
    console = Console(file=io.StringIO())
    with Steps(console) as bar:
        task = bar.add_task("", total=4)
        for step in range(4):
            bar.update(task, completed=step, description=f"step {step} [of four]")
    assert [line.partition(" %")[0] for line in lines(console)] == [f"step {n} [of four]: {25 * n}" for n in range(4)]


def test_quick_steps_share_lines() -> None:
    console = Console(file=io.StringIO())
    with Steps(console, apart=3600.0) as bar:
        assert list(bar.track(range(100), description="samples")) == list(range(100))
    assert len(lines(console)) == 1
    assert lines(console)[0].startswith("samples: ")
    console = Console(file=io.StringIO())
    with Steps(console, apart=3600.0) as bar:
        task = bar.add_task("steps", total=4)
        for step in range(1, 5):
            bar.update(task, completed=step)
    assert [line.partition(",")[0] for line in lines(console)] == ["steps: 25 %"]


def test_what_is_done_meanwhile_is_said_first() -> None:
    console = Console(file=io.StringIO())
    with status(console, "starting the server"):
        assert lines(console) == ["starting the server"]


@pytest.fixture
def handlers() -> Iterator[None]:
    """Have a signal mean afterwards what it meant before."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
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
