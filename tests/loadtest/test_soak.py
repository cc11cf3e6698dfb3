"""The soak: what it calls growth, and a short one against a real server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import covey
from loadtest.attack import soak
from loadtest.attack.soak import Kind, Taken

MIB = 1 << 20


def kind(name: str = "target", since: float = 0.0, **grows: float) -> Kind:
    """A process that was looked at a hundred times, and what it takes grows by so much from look to look."""
    usual = {"resident": 100.0 * MIB, "threads": 30.0, "descriptors": 40.0}
    found = soak.of_kind(
        name,
        [
            Taken(at, 1, **{figure: int(size + at * grows.get(figure, 0.0)) for figure, size in usual.items()})
            for at in range(100)
        ],
        since,
    )
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("grows", "said"),
    [
        ({}, ""),
        ({"threads": 0.1}, ""),
        ({"threads": 0.3}, "threads"),
        ({"descriptors": 0.3}, "descriptors"),
        ({"resident": 0.008 * MIB}, ""),  # of 100 MiB, over a hundred looks
        ({"resident": 0.012 * MIB}, "MiB resident"),
    ],
)
def test_what_grows_is_told(grows: dict[str, float], said: str) -> None:
    found = soak.problems([kind(**grows)], (10, 10))
    assert len(found) == bool(said)
    assert all(said in problem and problem.startswith("target: ") for problem in found)


def test_shared_memory_and_lives() -> None:
    assert soak.problems([], (10, 11)) == ["shared memory grew from 10 to 11 bytes"]
    assert soak.of_kind("target", [Taken(1.0, 1, 1, 1, 1)], 2.0) is None
    two = soak.of_kind("target", [Taken(1.0, pid, 1, 1, 1) for pid in (1, 2)], 0.0)
    assert two is not None
    assert two.lives == 2
    assert soak.taken(0.0, os.getpid()).threads >= 1  # type: ignore[union-attr]
    assert soak.taken(0.0, 1 << 30) is None


def test_growth_before_the_end_of_the_warm_up_does_not_count() -> None:
    early = [Taken(float(at), 1, 100 * MIB + MIB * min(at, 25), 30, 40) for at in range(100)]
    for since, grew in ((25.0, []), (0.0, ["target: 116.5 MiB resident, then 125.0"])):
        found = soak.of_kind("target", early, since)
        assert found is not None
        assert soak.problems([found], (0, 0)) == grew


@pytest.mark.e2e
@pytest.mark.slow
def test_a_short_soak(tmp_path: Path) -> None:
    """Too short to judge memory, which is still warming up; everything else is the long one's."""
    words = ["--minutes", "0.3", "--profile", "emulated-7b", "--out", str(tmp_path)]
    ran = subprocess.run(
        [sys.executable, "-m", "loadtest.attack", "soak", *words],
        cwd=Path(covey.__file__).parents[2],
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ran.returncode in (0, 1), ran.stderr
    found = json.loads((tmp_path / "soak.json").read_text(encoding="utf-8"))
    assert all("then" in problem or "grew" in problem for problem in found["problems"]), found["problems"]
    assert found["answers"]["right"] > 8
    assert {"tritonserver", "launcher", "front", "covey"} <= {process["name"] for process in found["processes"]}
    assert all(process["last"]["resident"] > MIB for process in found["processes"])
    assert found["shared_bytes"]["at_the_end"] >= MIB
    assert found["strays"]["left"] >= 1
