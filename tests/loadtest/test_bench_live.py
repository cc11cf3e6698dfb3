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


def test_speedup_asks_every_depth(tmp_path: Path) -> None:
    found = quick("speedup", tmp_path)
    assert set(found["overall_t1"]["tokens_per_second"]) == {"off", "fixed:2", "fixed:4", "auto"}
    assert found["overall_t1"]["policy_over_off"] > 0
    assert found["overall_t1"]["best_static_over_off"] > 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_bench_with_what_it_has_measured(tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "out.json"
    words = [sys.executable, "-m", "loadtest.bench", "speedup", "--quick", "--profile", "demo-cpu", "--json", str(out)]
    with subprocess.Popen(
        words, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stderr is not None
        said = next(line for line in process.stderr if line.startswith("repetition 2"))  # the first one is over
        process.send_signal(number)
        shown, rest = process.communicate(timeout=120)
    assert "%" in said
    assert process.returncode == 130, rest
    assert "The best fixed depth" in shown
    found = json.loads(out.read_text())
    assert found["interrupted"]
    assert found["repetitions"] == 1
    assert found["code"]["tokens_per_second"]["off"]["median"] > 0
