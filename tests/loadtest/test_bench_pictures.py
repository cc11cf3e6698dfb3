"""Pictures of benches that were ended early."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.bench import report

FULL = {f"domain {index}": [(0.0, 1.0 + index), (1.0, 2.0)] for index in range(report.MOST_LINES + 1)}


@pytest.mark.parametrize("lines", [{**FULL, "covey": []}, {"covey": []}, {}], ids=["some", "one", "none"])
def test_what_was_not_measured_is_no_line(tmp_path: Path, lines: dict[str, list[tuple[float, float]]]) -> None:
    picture = tmp_path / "picture.png"
    panels = [report.Panel("Medians", "x", "y", lines), report.Panel("Doubling", "x", "y", {"a": []}, log_x=True)]
    report.panels(picture, "Ended early", panels)
    assert picture.stat().st_size > 0
