"""The bench `star`: what one target's times predict."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from loadtest.bench import star
from loadtest.bench.session import Session, Wanted


def test_what_one_target_s_times_predict() -> None:
    before = {"calls_total": 10.0, "levels_total": 80.0, "service_seconds_total": 1.0}
    after = {"calls_total": 110.0, "levels_total": 880.0, "service_seconds_total": 2.0}
    found = star.seen(before, after, rate=100.0, tokens=400)
    assert (found.depth, found.step) == (8, pytest.approx(0.00125))
    assert found.away == pytest.approx(0.04 - 0.01)
    measured = star.StarRates({"1": [100.0], "3": [280.0], "local": [125.0]}, {"3": [0.95]})
    summary = measured.summary()
    assert (summary["scaling_n3"], summary["predicted_n3"], summary["remote_over_local"]) == (2.8, 0.95, 0.8)


def test_what_was_not_measured_is_empty(tmp_path: Path) -> None:
    session = Session("star", Wanted(tmp_path / "star.json"), Console(quiet=True), star.StarRates().summary)
    found = session.write()
    assert [found[key] for key in star.KEYS] == [None] * 4
    star.show(found, Console(quiet=True))
