"""The bench `star`: its ratios."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from loadtest.bench import star
from loadtest.bench.session import Session, Wanted


def test_ratios_are_of_medians() -> None:
    summary = star.StarRates({"1": [100.0], "3": [280.0], "local": [125.0]}).summary()
    assert (summary["scaling_n3"], summary["remote_over_local"]) == (2.8, 0.8)


def test_what_was_not_measured_is_empty(tmp_path: Path) -> None:
    session = Session("star", Wanted(tmp_path / "star.json"), Console(quiet=True), star.StarRates().summary)
    found = session.write()
    assert [found[key] for key in star.KEYS] == [None] * 2
    star.show(found, Console(quiet=True))
