"""The benches `load` and `trace` from made-up runs: their keys, what counts as the best static choice, their loads."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from covey.errors import SettingError
from loadtest.arrivals import Arrival
from loadtest.bench import first_minute, load, loads, trace
from loadtest.bench.session import Session, Wanted
from loadtest.bench.statistics import interval
from loadtest.bench.work import Answer, Run

TOKENS = tuple(range(40))


def answered(seconds: float) -> Run:
    return Run((Answer(TOKENS, seconds, drafted=60, accepted=20),), seconds)


def made_up_load(repetitions: int) -> load.Measured:
    """covey is as fast as fixed:2, the best; at concurrency 8 off is the best, and a tenth faster than covey."""
    measured = load.Measured()
    for concurrency, seconds in ((1, {"off": 2.0, "fixed:2": 1.0}), (8, {"off": 0.9, "fixed:2": 1.5})):
        for _ in range(repetitions):
            for name, each in {**seconds, "nightjar": 3.0, "covey": 1.0}.items():
                measured.runs[concurrency][name].append(answered(each))
    return measured


@pytest.mark.parametrize("repetitions", [1, 4])
def test_load_has_the_keys_it_promises(repetitions: int) -> None:
    found = made_up_load(repetitions).summary()
    assert found["points"]["1"]["covey_over_best_static"] == pytest.approx(1.0)
    assert found["points"]["8"]["covey_over_best_static"] == pytest.approx(0.9)
    assert found["min_covey_over_best_static"] == pytest.approx(0.9)
    assert set(found["points"]["1"]["picked"]) == {"fixed:2"}
    assert set(found["points"]["8"]["picked"]) == {"off"}
    assert found["points"]["1"]["depth"]["covey"] == pytest.approx(3.0), "60 drafted in the 20 rounds of a row"


def test_an_entrant_that_has_had_fewer_turns_shortens_the_comparison() -> None:
    measured = made_up_load(3)
    measured.runs[1]["covey"].pop()
    found = measured.summary()["points"]["1"]
    assert found["tokens_per_second"]["off"]["repetitions"] == 2


def made_up_trace() -> trace.Measured:
    """covey gains a tenth in throughput over fixed:2 and a fifth in latency over off."""
    measured = trace.Measured()
    for name, (seconds, latency) in {"off": (11.0, 1.2), "fixed:2": (5.5, 2.0), "covey": (5.0, 1.0)}.items():
        measured.runs[loads.TWO_PEAKS][name] = [Run((Answer(TOKENS, latency),), seconds)] * 2
        measured.depths[loads.TWO_PEAKS][name] = [(0.5, 2.0), (1.0, 1.5)]
    return measured


def test_trace_has_the_keys_it_promises() -> None:
    found = made_up_trace().summary()
    assert found["azure"] is None, "no trace was named"
    peaks = found["two_peaks"]
    assert peaks["throughput_covey_over_best_static"] == pytest.approx(1.1)
    assert peaks["latency_best_static_over_covey"] == pytest.approx(1.2)
    assert peaks["best_static"] == {"throughput": "fixed:2", "latency": "off"}
    assert peaks["policies"]["off"]["latency_p99"] == pytest.approx(1.2)


@pytest.mark.parametrize("bench", [load, trace])
def test_results_are_written_and_drawn(bench: object, tmp_path: Path) -> None:
    session = Session("policies", Wanted(tmp_path / "out.json"), Console(quiet=True))
    session.summarise = (made_up_load(2) if bench is load else made_up_trace()).summary
    result = session.write()
    assert json.loads((tmp_path / "out.json").read_text()) == result
    (load if bench is load else trace).show(result, session.console, tmp_path / "out.png")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("measured", [load.Measured(), trace.Measured()])
def test_what_was_not_measured_is_null(measured: load.Measured | trace.Measured) -> None:
    found = measured.summary()
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_loads_are_scaled_to_what_can_be_served() -> None:
    recorded = [Arrival(float(at), 10, 10) for at in range(3000)]
    made = loads.around(10.0, 100.0, recorded, seed=1)
    assert len(made["azure"]) == pytest.approx(1000 * loads.MEAN, rel=0.01)
    assert max(made["azure"]) == pytest.approx(100.0, rel=0.05)
    peaks = made["two_peaks"]
    assert len(peaks) == pytest.approx(1000 * loads.TWO_PEAKS_MEAN, rel=0.15)
    crowded = sum(20 <= at < 30 for at in peaks)
    assert crowded > 5 * sum(45 <= at < 55 for at in peaks)
    assert made == loads.around(10.0, 100.0, recorded, seed=1)
    assert "azure" not in loads.around(10.0, 100.0, None, seed=1)


def test_a_poisson_load_has_its_rate() -> None:
    times = loads.poisson(5.0, 2000, seed=3)
    assert len(times) == 2000
    assert times[-1] == pytest.approx(400.0, rel=0.1)


def test_a_trace_is_found_where_it_is_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COVEY_DATA", raising=False)
    assert loads.azure(None) is None
    with pytest.raises(SettingError):
        loads.azure(tmp_path)
    path = tmp_path / "azure_small.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n")
    assert loads.azure(path) == loads.azure(tmp_path) == [Arrival(0.0, 374, 44)]
    monkeypatch.setenv("COVEY_DATA", str(tmp_path))
    assert loads.azure(None) == [Arrival(0.0, 374, 44)]


def made_up_first(restarts: int) -> first_minute.Measured:
    """At 4 callers fixed:3 is best and covey nineteen twentieths of it; at 16 off, and covey is as good, whose learnt
    state gains a tenth."""
    measured = first_minute.Measured(notes={"seconds": 15.0})
    speeds = {4: {"off": 30.0, "fixed:3": 40.0, "covey": 38.0}, 16: {"off": 100.0, "fixed:3": 90.0, "covey": 100.0}}
    for concurrency, rates in speeds.items():
        for _ in range(restarts):
            for name, rate in rates.items():
                measured.rates[concurrency][name].append(rate)
        measured.rates[concurrency][first_minute.KEPT] += [110.0] * min(2, restarts) if concurrency == 16 else []
    return measured


def test_the_first_minute_has_the_keys_it_promises() -> None:
    found = made_up_first(8).summary()["first_minute_covey_over_best_static"]
    assert found["geometric_mean"] == pytest.approx(0.95**0.5)
    four, sixteen = found["points"]["4"], found["points"]["16"]
    assert (four["ratio"], four["restarts"], set(four["picked"])) == (pytest.approx(0.95), 8, {"fixed:3"})
    assert four["interval"] == pytest.approx([0.95, 0.95])
    assert four["with_state_kept"] is None
    assert (sixteen["ratio"], set(sixteen["picked"])) == (pytest.approx(1.0), {"off"})
    assert sixteen["with_state_kept"] == pytest.approx(1.1), "beside, and not in the mean"


def test_a_lucky_restart_does_not_make_a_static_choice_the_best() -> None:
    measured = made_up_first(8)
    measured.rates[4]["off"][3] = 400.0
    assert measured.summary()["first_minute_covey_over_best_static"]["points"]["4"]["picked"] == ["fixed:3"] * 2


@pytest.mark.parametrize("restarts", [0, 1])
def test_too_few_restarts_are_null(restarts: int) -> None:
    found = made_up_first(restarts).summary()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["first_minute_covey_over_best_static"]["geometric_mean"] is None


def test_the_first_minute_is_shown(tmp_path: Path) -> None:
    session = Session("load", Wanted(tmp_path / "out.json"), Console(quiet=True))
    session.summarise = lambda: load.Measured().summary() | made_up_first(8).summary()
    console = Console(file=io.StringIO(), record=True, width=120)
    load.show(session.write(), console, tmp_path / "out.png")
    assert "0.950 to 0.950" in console.export_text()


def test_an_interval_is_of_the_mean() -> None:
    low, high = interval([0.9, 1.0, 1.1, 0.95, 1.05, 1.0, 0.98, 1.02])
    assert 0.9 < low < 1.0 < high < 1.1


def test_a_rate_counts_what_came_within_its_time() -> None:
    came = [(0.5, 3), (1.0, 5), (4.9, 7), (5.0, 9)]
    assert first_minute._rate(came, 1.0, 5.0) == pytest.approx(3.0)


def test_an_unknown_part_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"--part: got 'last', allowed: steady, first"):
        load.run(Session("load", Wanted(tmp_path / "o.json", parts=("last",)), Console(quiet=True)))
