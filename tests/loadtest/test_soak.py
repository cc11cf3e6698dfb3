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
from loadtest.attack.soak import Taken

MIB = 1 << 20


def lives(*starts: float, until: float, **grows: float) -> list[Taken]:
    """Looks once a second at processes that began then, each when the one before had ended; what each takes grows by so
    much from look to look."""
    found, last = [], {"resident": 100.0 * MIB, "threads": 30.0, "descriptors": 40.0}
    for at in range(int(until)):
        last = {figure: size + grows.get(figure, 0.0) for figure, size in last.items()}
        pid = sum(at >= start for start in starts)
        found.append(Taken(float(at), pid, **{figure: int(size) for figure, size in last.items()}))
    return found


@pytest.mark.parametrize(
    ("name", "starts", "grows", "deaths", "said"),
    [
        ("target", (0.0,), {}, 9, ""),
        ("target", (0.0,), {"threads": 0.3}, 9, "threads"),
        ("tritonserver", (0.0,), {"threads": 0.3}, 9, ""),  # Triton keeps some of every model that died
        ("tritonserver", (0.0,), {"descriptors": 2.0}, 9, "descriptors"),
        ("launcher", (0.0,), {"resident": MIB / 2}, 9, "MiB resident"),
        ("target", (0.0, 50.0), {"resident": MIB / 2}, 9, ""),  # the second has met other requests
        ("target", (0.0, 50.0), {"descriptors": 1.0}, 9, ""),
    ],
)
def test_what_grows_across_restarts_is_told(
    name: str, starts: tuple[float, ...], grows: dict[str, float], deaths: int, said: str
) -> None:
    kind = soak.of_kind(name, lives(*starts, until=100, **grows))
    assert kind is not None
    assert kind.lives == len(starts)
    found = soak.problems([kind], ["target"] * deaths, (10, 10), soak.LIMIT_WITH_FAULTS)
    assert len(found) == bool(said)
    assert all(said in problem and problem.startswith(f"{name}: ") for problem in found)


def test_a_young_process_and_shared_memory() -> None:
    assert soak.of_kind("target", lives(0.0, until=soak.YOUNG_SECONDS)) is None
    assert soak.problems([], ["target"], (10, 11), 0.0) == []
    assert soak.problems([], [], (10, 11), 0.0) == ["shared memory grew from 10 to 11 bytes"]
    grown = soak.of_kind("tritonserver", lives(0.0, until=100, threads=1.5))
    assert grown is not None
    assert soak.problems([grown], ["covey"], (0, 0), 0.0) == [], "the pool of one that died"
    assert soak.problems([grown], ["target"], (0, 0), 0.0) != []
    assert soak.taken(0.0, os.getpid()).threads >= 1  # type: ignore[union-attr]
    assert soak.taken(0.0, 1 << 30) is None


@pytest.mark.parametrize(("growth", "said"), [(0.008, False), (0.012, True)])
def test_one_per_cent_in_all_is_growth_where_nobody_dies(growth: float, said: bool) -> None:
    kind = soak.of_kind("target", lives(0.0, until=105, resident=growth * MIB))  # of 100 MiB, over a hundred looks
    assert kind is not None
    assert bool(soak.problems([kind], [], (0, 0), soak.LIMIT)) == said


def test_growth_before_the_end_of_the_warm_up_does_not_count() -> None:
    early = [Taken(float(at), 1, 100 * MIB + MIB * min(at, 25), 30, 40) for at in range(100)]
    for since, grew in ((25.0, []), (0.0, ["target: 120.5 MiB resident, then 125.0"])):
        kind = soak.of_kind("target", early, since)
        assert kind is not None
        assert soak.problems([kind], [], (0, 0), soak.LIMIT) == grew


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("faults", ["0", "1"])
def test_a_short_soak(faults: str, tmp_path: Path) -> None:
    """Too short to judge memory, which is still warming up; everything else is the long one's."""
    words = ["--minutes", "0.3", "--faults", faults, "--profile", "emulated-7b", "--out", str(tmp_path)]
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
    assert found["faults"] == int(faults)
    assert {"tritonserver", "launcher", "front", "covey"} <= {process["name"] for process in found["processes"]}
    assert all(process["last"]["resident"] > MIB for process in found["processes"])
    assert found["shared_bytes"]["at_the_end"] >= MIB
    assert faults == "1" or found["strays"]["left"] >= 1
