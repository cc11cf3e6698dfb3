"""Smoke runs of benches against the real server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import covey
from covey.contracts.types import JsonDict
from loadtest.bench.__main__ import main

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

REPOSITORY = Path(covey.__file__).parents[2]


def quick(name: str, folder: Path, *options: str) -> JsonDict:
    out = folder / "out.json"
    assert main([name, "--quick", "--profile", "demo-cpu", "--json", str(out), *options]) == 0
    found: JsonDict = json.loads(out.read_text())
    return found


def test_speedup_compares_at_every_load_and_temperature(tmp_path: Path) -> None:
    found = quick("speedup", tmp_path)
    for callers in ("1", "4"):
        for temperature in ("0", "1"):
            point = found["points"][callers][temperature]
            assert {"off", "auto"} < set(point["tokens_per_second"]) < {"off", "fixed:2", "fixed:4", "auto"}
            assert point["turns"] == 2
            assert set(point["texts_that_differ_from_off"].values()) == {0}
            for key in ("adaptive_over_off", "adaptive_over_best_static"):
                median, low, high = found[key][callers][temperature]
                assert 0 < low <= median <= high
    assert (tmp_path / "out.svg").read_text().startswith("<svg")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_bench_with_what_it_has_measured(tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "out.json"
    words = [sys.executable, "-m", "loadtest.bench", "speedup", "--quick", "--profile", "demo-cpu", "--json", str(out)]
    with subprocess.Popen(
        words, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stderr is not None
        said = next(line for line in process.stderr if line.startswith("callers 4"))  # the first load is over
        process.send_signal(number)
        shown, rest = process.communicate(timeout=120)
    assert "%" in said
    assert process.returncode == 130, rest
    assert "auto over off" in shown
    found = json.loads(out.read_text())
    assert found["interrupted"]
    assert found["points"]["1"]["0"]["turns"] == 2
    assert found["points"]["4"]["1"]["turns"] == 0


def test_trial_finds_no_other_text_whatever_becomes_of_the_drafter(tmp_path: Path) -> None:
    found = quick("trial", tmp_path)
    assert found["failures"] == {}
    parts = found["parts"]
    assert len(parts["texts"]) == 2
    for by in parts["texts"].values():
        assert {name: each["differ"] for name, each in by.items()} == {"fixed:3": 0, "auto": 0}
        assert by["fixed:3"]["accepted"] > 0
    assert parts["death"]["differ"] == parts["memory"]["differ"] == 0
    assert parts["death"]["seconds_until_it_serves"] > 0
    assert parts["memory"]["unload"]["pool_grown_bytes"] > parts["memory"]["pin"]["pool_grown_bytes"]
