"""How a bench keeps its minutes, and says where it is."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from loadtest.bench.session import Session, Wanted


def session(minutes: float) -> Session:
    return Session("none", Wanted(Path("unused.json"), minutes=minutes), Console(file=io.StringIO()))


def test_a_turn_that_will_not_fit_does_not_begin() -> None:
    assert list(session(60.0).turns(3)) == [0, 1, 2]
    assert list(session(0.0).turns(3)) == [0], "the first whatever it takes"


def test_steps_end_where_the_next_one_will_not_fit_and_each_has_a_line() -> None:
    made = session(60.0)
    assert list(made.steps(["a", "b", "c"])) == ["a", "b", "c"]
    assert list(made.steps(["d", "e", "f"], 0.0)) == ["d"]
    assert isinstance(made.console.file, io.StringIO)
    assert [line[0] for line in made.console.file.getvalue().splitlines()] == ["a", "b", "c", "d"]
