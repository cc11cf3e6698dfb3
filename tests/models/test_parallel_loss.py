"""Ranks end together: with a rank that dies, with the process that started them, and with a load that fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from covey.contracts.errors import PortError, RankDied, SettingError
from covey.contracts.profile import TargetSettings
from covey.contracts.types import Open, Sampling, TargetWork, Trees
from covey.target.runner import TargetRunner
from tests.models import tiny_models
from tests.waiting import until

SETTINGS = TargetSettings(
    dtype="float32", device="cpu", threads=1, kv_blocks=40, block_size=4, numerics="fast", tensor_parallel=2
)
# Without torch, which takes seconds to import: the other rank then waits for one that never joins it.
START = """
import sys, time
from covey.models.parallel.processes import Followers
model = {"source": sys.argv[1], "dtype": "float32", "blocks": 8}
followers = Followers(2, {"device": "cpu", "threads": 1, "model": model}, lambda: None)
followers.wait_loaded()
print(*followers.processes, flush=True)
time.sleep(60)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.build(tmp_path_factory.mktemp("parallel"), "qwen2")


def ended(*pids: int) -> bool:
    return until(lambda: not any(_runs(pid) for pid in pids))


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_rank_that_dies_in_a_pass_fails_it_and_those_that_follow(folder: Path) -> None:
    target = TargetRunner.load(folder, SETTINGS, token_budget=64, name="target")
    assert target.info().device == "cpu x 2"
    (pid,) = target._model.processes  # type: ignore[union-attr]
    prompt = np.array([5, 6, 7], np.int32)

    def step(sequence: int, runner: TargetRunner = target) -> list[int]:
        opens = (Open(sequence, prompt, 3, Sampling()),)
        tags, three = np.array([sequence], np.int32), np.array([3], np.int32)
        work = TargetWork(tags, three, three, Trees.empty(1), opens, sequence=sequence)
        return [int(token) for token in runner.step(work).tokens]

    alone = TargetRunner.load(folder, replace(SETTINGS, tensor_parallel=1), token_budget=64, name="target")
    assert step(1) == step(1, alone)
    os.kill(pid, signal.SIGSTOP)  # so that it is in the pass when it dies
    killer = threading.Timer(0.5, os.kill, (pid, signal.SIGKILL))
    started = time.monotonic()
    killer.start()
    with pytest.raises(RankDied, match="rank 1 of 2 ended with status -9"):
        step(2)
    assert 0.5 <= time.monotonic() - started < 40
    killer.join()
    with pytest.raises(PortError, match="rank 1 of 2 ended"):
        step(3)
    assert time.monotonic() - started < 45
    assert not os.path.exists(f"/proc/{pid}")
    target.close()


def test_ranks_end_with_the_process_that_started_them(folder: Path, tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path), "COVEY_TOKEN": "00", "WORLD_SIZE": "8"}
    with subprocess.Popen(
        [sys.executable, "-c", START, str(folder)], stdout=subprocess.PIPE, text=True, env=environment
    ) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 1
        assert all(_runs(pid) for pid in pids)
        variables = Path(f"/proc/{pids[0]}/environ").read_text()
        parent.kill()
    assert "COVEY_" not in variables
    assert "WORLD_SIZE" not in variables
    assert ended(*pids)


def test_a_load_that_all_ranks_refuse_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wanted can be found out by all of them together alone."""
    started: list[int] = []
    begin = subprocess.Popen.__init__

    def watched(process: subprocess.Popen[bytes], *given: object, **named: object) -> None:
        begin(process, *given, **named)  # type: ignore[call-overload]
        started.append(process.pid)

    monkeypatch.setattr(subprocess.Popen, "__init__", watched)
    folder = tiny_models.build(tmp_path, "gemma2")  # products of its small matrices are of another order in few rows
    with pytest.raises(SettingError, match="numerics: invariant is not to be had"):
        TargetRunner.load(folder, replace(SETTINGS, numerics="invariant"), token_budget=64, name="target")
    assert len(started) == 1
    assert ended(*started)
