"""The soak: what it calls growth, and a short one against a real server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import covey
from covey.errors import SettingError
from covey_client.rates import Reading
from loadtest.records import Record, Run
from loadtest.soak import faulty, load, picture
from loadtest.soak.faulty import Taken
from loadtest.soak.footprint import Footprint, Sample
from loadtest.soak.verdict import judge

MIB = 1 << 20


def samples(growth: float, *, shared: int = 0, ends: int = 100) -> list[Sample]:
    """A hundred looks, a second apart; `a` grows by that part of its size over the last three quarters."""
    found = []
    for at in range(100):
        resident = {"b": 50 * MIB, "a": int(100 * MIB * (1 + growth * max(0, at - 25) / 74))}
        if at >= ends:
            del resident["b"]
        found.append(Sample(float(at), resident, 14 * MIB + shared * (at > 60), 14))
    return found


def test_what_is_flat_passes() -> None:
    found = judge(samples(0.005), 25.0, ())
    assert found.passed
    by_name = {trend.name: trend for trend in found.trends}
    assert by_name["a"].growth == pytest.approx(0.005, abs=1e-4)
    assert by_name["b"].growth == pytest.approx(0.0, abs=1e-9)


def test_growth_before_the_end_of_the_warm_up_does_not_count() -> None:
    early = [Sample(float(at), {"a": MIB * min(at, 25) + MIB}, 0, 0) for at in range(100)]
    assert judge(early, 25.0, ()).passed
    assert not judge(early, 5.0, ()).passed


@pytest.mark.parametrize(
    ("seen", "errors", "reason"),
    [
        (samples(0.02), (), "a grew by 2.00 % from 100 MiB"),
        (samples(0.0, shared=1), (), "shared memory grew from 14680064 to 14680065 bytes"),
        (samples(0.0, ends=99), (), "b ended before the run did"),
        (samples(0.0), ("greedy: 3 times ServerError: oh",), "greedy: 3 times ServerError: oh"),
        (samples(0.0)[:3], (), "only 0 looks at the memory after the warm-up: run longer"),
    ],
)
def test_what_does_not_pass_says_why(seen: list[Sample], errors: tuple[str, ...], reason: str) -> None:
    found = judge(seen, 25.0, errors)
    assert not found.passed
    assert found.reasons() == [reason]


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    seen = samples(0.02, shared=MIB, ends=99)
    picture.draw(seen, judge(seen, 25.0, ()), 25.0, "made up", tmp_path / "soak.png")
    assert (tmp_path / "soak.png").stat().st_size > 10_000


def test_capacity_is_what_ended_after_the_start(tmp_path: Path) -> None:
    done = [Record(at=at, transport="grpc", level="chat", topic="", outcome="length", e2e=1.0) for at in range(10)]
    lost = Record(at=5.0, transport="grpc", level="chat", topic="", outcome="ServerError", error="oh")
    run = Run(tmp_path, {"ran_seconds": 10.0}, (), (*done, lost), (Reading(0.0, ()),))
    assert load.capacity({"greedy": run}, skip=2.0) == {"greedy": 9 / 8}


def test_a_process_that_ended_is_noticed_before_anybody_waits_for_it() -> None:
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)", "--backend-config=python,shm-region-prefix-name=x"]
    with subprocess.Popen(sleeper) as process:
        watched = Footprint(process.pid)
        assert watched.ended() == []
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert watched.ended() == list(watched.pids) != []


def test_only_a_server_of_ours_on_this_machine_can_be_watched() -> None:
    with pytest.raises(SettingError, match="no tritonserver that Covey started"):
        Footprint(os.getpid())
    with pytest.raises(SettingError, match="no process"):
        Footprint(1 << 30)


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
    kind = faulty.of_kind(name, lives(*starts, until=100, **grows))
    assert kind is not None
    assert kind.lives == len(starts)
    found = faulty.problems([kind], ["target"] * deaths, (10, 10))
    assert len(found) == bool(said)
    assert all(said in problem and problem.startswith(f"{name}: ") for problem in found)


def test_a_young_process_and_shared_memory() -> None:
    assert faulty.of_kind("target", lives(0.0, until=faulty.YOUNG_SECONDS)) is None
    assert faulty.problems([], ["target"], (10, 11)) == []
    assert faulty.problems([], [], (10, 11)) == ["shared memory grew from 10 to 11 bytes"]
    grown = faulty.of_kind("tritonserver", lives(0.0, until=100, threads=1.5))
    assert grown is not None
    assert faulty.problems([grown], ["covey"], (0, 0)) == [], "the pool of one that died"
    assert faulty.problems([grown], ["target"], (0, 0)) != []
    assert faulty.taken(0.0, os.getpid()).threads >= 1  # type: ignore[union-attr]
    assert faulty.taken(0.0, 1 << 30) is None


@pytest.mark.e2e
@pytest.mark.slow
def test_a_short_soak(tmp_path: Path) -> None:
    """Too short to judge memory, which is still warming up; everything else is the long one's."""
    words = ["--minutes", "0.1", "--capacity-seconds", "4", "--profile", "emulated-7b", "--out", str(tmp_path)]
    ran = subprocess.run(
        [sys.executable, "-m", "loadtest.soak", *words],
        cwd=Path(covey.__file__).parents[2],
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    found = json.loads((tmp_path / "soak.json").read_text(encoding="utf-8"))
    assert ran.returncode in (0, 1), ran.stderr
    assert all("grew" in reason for reason in found["reasons"]), found["reasons"]
    assert set(found["requests_finished"]) == {kind.name for kind in load.KINDS}
    assert all(found["requests_finished"].values())
    assert {"tritonserver", "target", "covey", "draft_emulated"} <= {process["name"] for process in found["processes"]}
    assert all(process["last"] > MIB for process in found["processes"])
    assert found["shared_bytes"]["at_the_end"] >= MIB
    assert found["strays"]["left"] >= 1
    assert (tmp_path / "soak.png").is_file()
