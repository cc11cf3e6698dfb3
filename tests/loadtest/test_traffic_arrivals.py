"""When requests come."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from covey.contracts.errors import SettingError
from loadtest import arrivals

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:16:06.6805900,12,8
"""


def times(shape: str, seconds: float, seed: int = 1) -> list[float]:
    return [arrival.at for arrival in arrivals.parse(shape).arrivals(seconds, random.Random(seed))]


def within(found: list[float], low: float, high: float) -> int:
    return sum(low <= at < high for at in found)


def test_closed_has_users_and_no_arrivals() -> None:
    assert arrivals.parse("closed:8").users == 8
    assert times("closed:8", 100) == []


def test_poisson_comes_at_its_rate_with_its_spread() -> None:
    found = times("poisson:20", 500)
    assert len(found) == pytest.approx(10_000, rel=0.05)
    assert found == sorted(found)
    assert found == times("poisson:20", 500)
    assert found != times("poisson:20", 500, seed=2)
    counts = [within(found, at, at + 1) for at in range(500)]
    mean = sum(counts) / len(counts)
    variance = sum((count - mean) ** 2 for count in counts) / len(counts)
    assert variance == pytest.approx(mean, rel=0.3)


def test_peaks_are_at_a_quarter_and_at_three_quarters() -> None:
    found = times("peaks:1,40", 400)
    for peak in (100, 300):
        assert within(found, peak - 10, peak + 10) == pytest.approx(20 * 40, rel=0.15)
    for valley in (0, 190, 390):
        assert within(found, valley, valley + 10) < 40


def test_azure_is_read_from_its_first_arrival(tmp_path: Path) -> None:
    (tmp_path / "azure.csv").write_text(AZURE)
    shape = arrivals.parse(f"azure:{tmp_path}/azure.csv")
    found = list(shape.arrivals(100, random.Random(1)))
    assert [(round(a.at, 4), a.input_tokens, a.output_tokens) for a in found] == [
        (0.0, 374, 44),
        (4.3146, 396, 109),
        (20.0, 12, 8),
    ]
    assert len(list(shape.arrivals(10, random.Random(1)))) == 2


def test_traces_are_stretched_and_scaled(tmp_path: Path) -> None:
    (tmp_path / "azure.csv").write_text(AZURE)
    shape = arrivals.parse(f"azure:{tmp_path}/azure.csv", rate=1.5, lengths=0.1)
    found = list(shape.arrivals(100, random.Random(1)))
    assert [(round(a.at, 4), a.input_tokens, a.output_tokens) for a in found] == [
        (0.0, 37, 4),
        (pytest.approx(0.4315, abs=1e-4), 40, 11),
        (2.0, 1, 1),
    ]


@pytest.mark.parametrize(
    "shape", ["closed:0", "closed:1.5", "poisson:0", "poisson:x", "peaks:4,1", "steady:3", "azure", ""]
)
def test_a_shape_that_is_none_lists_the_shapes(shape: str) -> None:
    with pytest.raises(SettingError, match=r"allowed: closed:N, poisson:RATE"):
        arrivals.parse(shape)


@pytest.mark.parametrize(
    "shape",
    ["closed:1e9", "poisson:inf", "poisson:1e12", "poisson:nan", "peaks:0,0", "peaks:1,inf"],
)
def test_a_shape_that_no_process_can_offer_is_refused(shape: str) -> None:
    with pytest.raises(SettingError, match="shape: got"):
        arrivals.parse(shape)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, r"own\.csv is no trace in"),
        (b"\x1f\x8b\xff\xfe\x00", r"own\.csv is no trace in"),
        (b"a,b\n1,2\n", r"own\.csv is no trace in Azure's format"),
        (b"", "holds no request"),
    ],
    ids=["missing", "no text", "another format", "empty"],
)
def test_a_file_that_is_no_trace_is_named(content: bytes | None, said: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "own.csv").write_bytes(content)
    with pytest.raises(SettingError, match=said):
        arrivals.parse(f"azure:{tmp_path}/own.csv")
