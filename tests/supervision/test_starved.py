"""Who wants a processor and has none is starved; who spins, alone or in company, and who sleeps are not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from covey.supervision import starved
from covey.supervision.starved import NANOSECONDS, Starved
from tests.waiting import until


class Threads:
    """Of one process, as the kernel tells of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._spent: dict[int, tuple[float, float]] = {}

    def spend(self, threads: dict[int, tuple[float, float]]) -> None:
        """Seconds that each ran and waited."""
        for thread, (ran, waited) in threads.items():
            before = self._spent.get(thread, (0.0, 0.0))
            self._spent[thread] = ran, waited = before[0] + ran, before[1] + waited
            file = self._folder / "7" / "task" / str(thread) / "schedstat"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{ran * NANOSECONDS:.0f} {waited * NANOSECONDS:.0f} 1\n")


@pytest.mark.parametrize(
    ("threads", "waited"),
    [
        ({1: (0.0, 0.0)}, 0.0),  # sleeps
        ({1: (1.0, 0.0)}, 0.0),  # spins alone
        ({1: (0.1, 0.9)}, 0.8),
        ({1: (0.5, 0.5)}, 0.0),
        ({1: (0.1, 0.9), 2: (0.1, 0.9)}, 0.8),
        ({1: (0.1, 0.9), 2: (0.0, 0.0)}, 0.8),
        (dict.fromkeys(range(1, 101), (0.02, 0.98)), 0.0),  # a hundred that spin, on two processors
    ],
)
def test_what_a_process_had_of_the_processors_is_no_starving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: dict[int, tuple[float, float]], waited: float
) -> None:
    monkeypatch.setattr(starved, "PROC", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    made, process = Starved(), Threads(tmp_path)
    process.spend(dict.fromkeys(threads, (1.0, 5.0)))
    assert made.look([7]) == 0.0, "nothing is known of it yet"
    process.spend(threads)
    assert made.look([7]) == pytest.approx(waited, abs=0.01)
    assert made.look([7]) == 0.0


@pytest.fixture
def busy() -> Iterator[list[subprocess.Popen[bytes]]]:
    """More processes that spin than one processor has room for, and one that sleeps."""
    processor = str(min(os.sched_getaffinity(0)))
    words = ["taskset", "-c", processor, sys.executable, "-c", "while True: pass"]
    running = [*(subprocess.Popen(words) for _ in range(6)), subprocess.Popen(["sleep", "60"])]
    yield running
    for process in running:
        process.kill()
        process.wait()


def begun(pid: int) -> bool:
    """Whether it is past its start: the one sleeps, the others have spun for a while."""
    name, _, stat = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
    words = stat.split()
    return words[0] == "S" if name == "sleep" else name != "taskset" and int(words[11]) >= 5


def test_the_kernel_tells(busy: list[subprocess.Popen[bytes]]) -> None:
    until(lambda: all(begun(process.pid) for process in busy))
    spins, sleeps = Starved(), Starved()
    spins.look([busy[0].pid])
    sleeps.look([busy[-1].pid])
    began = time.monotonic()
    time.sleep(1.0)
    assert spins.look([busy[0].pid]) > 0.3 * (time.monotonic() - began)
    assert sleeps.look([busy[-1].pid]) < 0.1
    assert spins.look([2**22]) == 0.0, "there is no such process"
