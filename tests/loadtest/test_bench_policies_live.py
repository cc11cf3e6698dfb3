"""Smoke runs of the benches `load` and `trace` against the real server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtest.bench.__main__ import main

pytestmark = pytest.mark.e2e


@pytest.mark.slow
def test_a_closed_loop_measures_every_entrant(tmp_path: Path) -> None:
    out = tmp_path / "load.json"
    assert main(["load", "--quick", "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["min_covey_over_best_static"] > 0
    for point in found["points"].values():
        assert all(rate["median"] > 0 for rate in point["tokens_per_second"].values())
        assert point["depth"]["off"] == 0.0
        assert point["depth"]["fixed:3"] > 1.0
    first = found["first_minute_covey_over_best_static"]
    assert first["geometric_mean"] > 0
    assert first["points"]["4"]["restarts"] == 2
    assert first["points"]["4"]["with_state_kept"] > 0


@pytest.mark.slow
def test_an_open_loop_measures_every_entrant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COVEY_DATA", raising=False)
    out = tmp_path / "trace.json"
    assert main(["trace", "--quick", "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["azure"] is None
    assert found["two_peaks"]["throughput_covey_over_best_static"] > 0
    assert found["two_peaks"]["latency_best_static_over_covey"] > 0
    assert set(found["two_peaks"]["policies"]) == {"off", "fixed:3", "covey"}
    assert found["two_peaks"]["depth_over_time"]["covey"]
