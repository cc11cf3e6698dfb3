"""The run of faults: what it counts as lost, how it hurts, and a few faults in a real server."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import covey
from loadtest.attack import injection, rooms, spin, verdict
from loadtest.attack.injection import Fault, Injection, kinds, turns
from loadtest.attack.messages import Messages
from loadtest.attack.streams import Outcome, asks
from tests.waiting import until


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@pytest.mark.skipif(not spin.possible(), reason="it writes instructions of x86-64")
def test_what_spins_runs_and_does_nothing_else() -> None:
    loop = "import time\nwhile True:\n print(1, flush=True)\n time.sleep(0.01)"
    with subprocess.Popen([sys.executable, "-c", loop], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            spin.spin(process.pid)
        except PermissionError:
            pytest.skip("tracing is not allowed here")
        else:
            before = cpu_ticks(process.pid)
            until(lambda: cpu_ticks(process.pid) >= before + 10)  # it hardly took any before
        finally:
            process.kill()


def test_every_kind_has_its_turn_and_a_seed_says_when() -> None:
    running = dict.fromkeys(("covey", "draft_code", "front", "target", "tritonserver"), 1)
    server = SimpleNamespace(processes=lambda: running, rooms={"shared_memory": None})
    wanted = kinds(server)  # type: ignore[arg-type]
    assert len(wanted) == len(set(wanted)) == (3 if spin.possible() else 2) * len(running) + 1
    assert {("shared_memory", "fill"), ("covey", "pause")} < set(wanted)
    order = turns(wanted, random.Random(1))
    first = [next(order) for _ in wanted]
    assert sorted(first) == sorted(wanted)
    again = turns(wanted, random.Random(1))
    assert [next(again) for _ in wanted] == first != [next(again) for _ in wanted]


class Place:
    """A room; whether it is full."""

    hurt = False

    def fill(self) -> None:
        self.hurt = True

    def empty(self) -> None:
        self.hurt = False


def test_a_full_place_is_mended_and_recovery_counts_from_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(injection, "HOLD_SECONDS", 0.05)
    room, up = Place(), [True]
    server = SimpleNamespace(
        processes=lambda: {"front": 1}, ready=lambda _name="": up[0], rooms={"shared_memory": room}
    )
    made = Injection(server)  # type: ignore[arg-type]
    assert made.hurt("shared_memory", "fill")
    assert not made.hurt("shared_memory", "fill"), "it is full already"
    made.look()
    assert room.hurt
    up[0] = False
    time.sleep(0.06)
    made.look()
    assert not room.hurt
    made.look()
    assert made.done == []
    up[0] = True
    made.look()
    assert [fault.kind for fault in made.done] == ["fill shared_memory"]
    assert all(fault.seconds is not None and fault.seconds < 10 for fault in made.done)


@pytest.mark.skipif(not rooms.possible(), reason="it needs a mount namespace")
def test_a_full_place_has_no_byte_left_and_the_machine_has(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    with subprocess.Popen([*rooms.words(kept), "sh", "-c", "echo there; sleep 60"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        places = [rooms.Room(process.pid, place) for place in (kept, Path("/dev/shm"))]
        try:
            for place in places:
                (place.path / "own").write_bytes(b"x")
                place.fill()
                with pytest.raises(OSError, match="No space"):
                    (place.path / "more").write_bytes(b"x")
                place.empty()
                (place.path / "more").write_bytes(b"x")
            assert list(kept.iterdir()) == []
        finally:
            process.kill()
            for place in places:
                place.leave()


def test_asks_and_requests_are_the_same_for_a_seed() -> None:
    assert asks(9, 32, 5, ("draft_code",)) == asks(9, 32, 5, ("draft_code",)) != asks(9, 32, 6, ("draft_code",))
    assert {ask.door for ask in asks(9, 32, 5, ())} == {"grpc", "unary"}
    drawn, again = Messages(3), Messages(3)
    for one, other in ((drawn.body, again.body), (drawn.request, again.request), (drawn.message, again.message)):
        assert [one() for _ in range(100)] == [other() for _ in range(100)]


def test_what_is_lost_is_said_and_what_failed_openly_is_counted() -> None:
    right, wrong = Outcome("grpc", "right", 1.0), Outcome("http", "wrong", 1.0)
    failed = Outcome("http", "error", 1.0, "ServerError: oh")
    assert verdict.of_answers([right, failed]) == []
    assert verdict.of_answers([right, failed], errors=False) == ["1 answers error"]
    assert verdict.of_answers([right, wrong, Outcome("grpc", "late", 9.0)]) == ["1 answers wrong", "1 answers late"]
    assert verdict.of_answers([failed]) == ["no answer was right"]
    back, lost = Fault("target", "kill", 1, 0.0, 2.0), Fault("target", "pause", 1, 0.0)
    assert verdict.of_faults([back, lost]) == ["pause target: not back after 120 s"]
    found = verdict.recovery([back, Fault("target", "kill", 2, 0.0, 4.0), lost]) | verdict.said([right, failed], 3)
    assert found["recovery"] == {"kill target": {"faults": 2, "median_s": 3.0, "worst_s": 4.0}}
    assert found["errors"] == {"ServerError: oh": 1}
    assert verdict.table(found).row_count == 1


def run(out: Path, seconds: float, *words: str) -> dict[str, object]:
    ran = subprocess.run(
        [sys.executable, "-m", "loadtest.attack", "faults", *words, "--out", str(out)],
        cwd=Path(covey.__file__).parents[2],
        check=False,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert ran.returncode in (0, 1), ran.stderr
    found: dict[str, object] = json.loads((out / "faults.json").read_text(encoding="utf-8"))
    assert found["problems"] == []
    return found


@pytest.mark.e2e
def test_a_few_faults_cost_no_answer(tmp_path: Path) -> None:
    """An emulated target: what is tried is the way back, not the model."""
    words = ("--profile", "emulated-7b", "--faults", "2", "--streams", "3", "--tokens", "24", "--pause", "0.2")
    found = run(tmp_path, 200, *words, "--only", "kill covey,kill front,kill draft_emulated,kill target")
    assert found["faults"] == 2


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(5500)
def test_two_hundred_faults_cost_no_answer(tmp_path: Path) -> None:
    assert run(tmp_path, 5400)["faults"] == 200
