"""How a bench keeps its minutes, and says where it is."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from loadtest.bench.session import Session, Wanted


def session(minutes: float) -> Session:
    return Session("none", Wanted(Path("unused.json"), minutes=minutes), Console(file=io.StringIO()))


def test_steps_have_a_line_each_and_the_longest_says_when_time_is_up() -> None:
    made, late = session(60.0), session(0.0)
    assert list(made.steps(["a", "b", "c"])) == ["a", "b", "c"]
    assert not made.out_of_time()
    assert late.out_of_time()
    assert isinstance(made.console.file, io.StringIO)
    assert [line[0] for line in made.console.file.getvalue().splitlines()] == ["a", "b", "c"]
