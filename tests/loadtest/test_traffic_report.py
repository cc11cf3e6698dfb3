"""The numbers of a run, and its page."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import replace
from pathlib import Path

import pytest

from covey.contracts.errors import SettingError
from covey_client.rates import MetricsSnapshot
from covey_client.status import Sample
from loadtest import charts, pictures, records, report, summary
from loadtest.levels import Level
from loadtest.records import Record, RecordedRun, Recorder

LEVELS = (Level("fast", 1.0, 0.1, 0.02), Level("slow", 1.0, 1.0, 0.1))


def finished(at: float, level: str = "fast", **changes: object) -> Record:
    usual = Record(at, level, "math", "length", ttft=0.05, tpot=0.01, e2e=0.14, input_tokens=20, output_tokens=10)
    return dataclasses.replace(usual, **changes)  # type: ignore[arg-type]


def reading(at: float, **values: float) -> MetricsSnapshot:
    samples = [Sample(f"covey_{name}_total", {"model": "covey"}, value) for name, value in values.items()]
    of_one = {"model": "covey", "drafter": "draft_math"}
    samples += [
        Sample("covey_spec_decode_num_draft_tokens_total", of_one, 40.0 * at),
        Sample("covey_spec_decode_num_accepted_tokens_total", of_one, 30.0 * at),
        Sample("covey_drafter_resident_bytes", of_one, 2.0**25),
        Sample("covey_planner_rounds_total", {"model": "covey", "depth": "3", "why": "best"}, 10.0 * at),
    ]
    samples += [Sample("covey_kv_blocks", {"state": state}, value) for state, value in (("used", 25.0), ("free", 75.0))]
    return MetricsSnapshot(at, tuple(samples))


RECORDS = (
    finished(0.0),
    finished(1.0, ttft=0.2, e2e=0.29),
    finished(2.0, "slow", ttft=0.5, tpot=0.2, e2e=2.3),
    finished(3.0, "slow", draft_tokens=8, accepted_draft_tokens=6),
    Record(4.0, "fast", "math", "ServerError", error="the <target> failed"),
    Record(5.0, "fast", "math", "unfinished", ttft=0.05),
)
READINGS = tuple(reading(float(at), generation_tokens=100.0 * at, rounds=10.0 * at) for at in range(9))


def a_run(tmp_path: Path, rows: tuple[Record, ...] = RECORDS, name: str = "one") -> RecordedRun:
    with Recorder(tmp_path / name, {"shape": "closed:2", "started": name, "seconds": 10.0}, LEVELS) as recorder:
        for row in rows:
            recorder.request(row)
        for look in READINGS:
            recorder.reading(look)
        recorder.end(8.0, True)
    return records.load(tmp_path / name)


def figure(run: RecordedRun, name: str, unit: str | None = None) -> float | None:
    return next(f.value for f in summary.totals(run) if f.name == name and unit in (None, f.unit))


def test_drafters_and_depths_have_lines_of_their_own(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    drawn = {chart.title: chart for chart in pictures.charts(run)}
    for title, label, value in (
        ("Depths chosen", "3", 10.0),
        ("Drafted tokens accepted, by drafter", "draft_math", 75.0),
        ("Drafters in memory", "draft_math", 32.0),
    ):
        [(name, points)] = drawn[title].lines.items()
        assert name == label
        assert {found for _, found in points} == {value}


def test_a_run_comes_back_as_it_was_written(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    assert run.records == RECORDS
    assert run.readings == READINGS
    assert run.levels == LEVELS
    assert run.seconds == 8.0
    assert run.complete


def test_totals(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    assert figure(run, "requests finished") == 4
    assert figure(run, "requests failed") == 1
    assert figure(run, "requests unfinished at the end") == 1
    assert figure(run, "throughput", "requests/s") == 4 / 8
    assert figure(run, "throughput", "output tokens/s") == 40 / 8
    assert figure(run, "goodput") == 20 / 8
    assert figure(run, "SLO attainment") == pytest.approx(100 * 2 / 5)
    assert figure(run, "TTFT p50") == pytest.approx(125.0)
    assert figure(run, "acceptance") == 75
    assert figure(run, "KV pool in use, at most") == 25


def test_levels(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    fast, slow = (summary.by_level(run, level) for level in LEVELS)
    assert (fast["requests"], fast["failed"]) == (3, 1)
    assert fast["TTFT met, %"] == pytest.approx(100 / 3)
    assert slow["TTFT met, %"] == 100
    assert slow["TPOT met, %"] == 50
    assert slow["both met, %"] == 50


def test_a_run_without_requests_has_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = a_run(tmp_path, ())
    assert figure(run, "TTFT p50") is None
    assert charts.svg(pictures.charts(run)[2]).startswith("<svg")
    monkeypatch.setattr(charts, "svg", lambda _: "")
    assert "No request finished" in report.html(run)


def test_quantiles_interpolate() -> None:
    assert summary.quantile([], 0.5) is None
    assert summary.quantile([3.0], 0.99) == 3.0
    assert summary.quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5


def test_series_over_time(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    assert summary.width(run) == 1.0
    assert summary.counted(run, lambda span: span.rate("covey_generation_tokens_total")) == [
        (at, 100.0) for at in (1.0, 3.0, 5.0, 7.0)
    ]
    sent = summary.over_time(run, len, at_end=False)
    assert sent[:5] == [(0.5, 1), (1.5, 1), (2.5, 1), (3.5, 1), (4.5, 1)]


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    page = report.write(run).read_text(encoding="utf-8")
    assert page == report.html(run)  # the same run, the same page
    assert not re.search(r"""<(?:script|link|img|iframe)\b|@import|url\((?!#)|src=""", page)
    assert not re.search(r"""href="(?!#)""", page)
    assert page.count("<svg") == len(pictures.charts(run))
    assert "the &lt;target&gt; failed" in page
    assert "cut short" not in page
    for chart in pictures.charts(run):
        assert chart.unit
        assert chart.about
        assert chart.title in page


def test_a_comparison_says_what_is_better(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    earlier = a_run(tmp_path, tuple(finished(float(at), ttft=0.09) for at in range(4)), "before")
    alone, beside = (charts.svg(pictures.charts(a_run(tmp_path), other)[0]) for other in (None, earlier))
    assert alone != beside
    monkeypatch.setattr(charts, "svg", lambda _: "")  # the rest is words
    page = report.html(a_run(tmp_path), earlier)
    assert "compared with the run of before" in page
    assert '<span class="worse">' in page
    assert "earlier" in page
    assert "<th>plain</th>" not in page
    plain = replace(earlier, settings={**earlier.settings, "speculation": "off"})
    assert "<th>plain</th>" in report.html(a_run(tmp_path), plain)
    assert "<th>earlier</th>" in report.html(plain, plain)
    throughput = summary.Figure("throughput", "", 2.0, True)
    assert report.change(throughput, 1.0) == ("+100.0 %", "better")
    assert report.change(throughput, 4.0) == ("-50.0 %", "worse")
    assert report.change(throughput, 1.99) == ("+0.5 %", "")
    assert report.change(throughput, None) == ("–", "")


def test_a_comparison_of_two_loads_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(charts, "svg", lambda _: "")
    run, earlier = a_run(tmp_path), a_run(tmp_path, name="before")
    assert "another load" not in report.html(run, earlier)
    earlier = replace(earlier, settings={**earlier.settings, "shape": "closed:64", "speculation": "off"})
    assert "another load: other shape" in report.html(run, earlier)
    report.show(run, earlier)
    assert "another load: other shape" in capsys.readouterr().out


def test_a_killed_run_is_reported_up_to_its_last_whole_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charts, "svg", lambda _: "")
    with Recorder(tmp_path / "cut", {"seconds": 60.0}, LEVELS) as recorder:
        for row in RECORDS[:3]:
            recorder.request(row)
    with (tmp_path / "cut" / records.REQUESTS).open("a", encoding="utf-8") as file:
        file.write('{"at": 7.0, "trans')
    run = records.load(tmp_path / "cut")
    assert run.records == RECORDS[:3]
    assert run.seconds == pytest.approx(4.3)
    assert "This run was cut short: 4 of 60 s." in report.html(run)


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="holds no run of this load test"):
        records.load(tmp_path)


def test_goodput_over_time_counts_tokens_when_they_were_streamed(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    long = [replace(RECORDS[0], at=at, ttft=1.0, e2e=5.0, output_tokens=80) for at in (0.0, 1.0)]
    points = summary.streamed(run, long)
    assert [at for at, _ in points] == [0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5]
    assert [value for _, value in points] == pytest.approx([0, 20, 40, 40, 40, 20, 0, 0], abs=1e-3)
    at_once = summary.streamed(run, [replace(long[0], ttft=None, e2e=0.0)])
    assert sum(value for _, value in at_once) == pytest.approx(80)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError, match=r"out: .*file/run cannot be made: Not a directory"):
        Recorder(tmp_path / "file" / "run", {}, LEVELS)
