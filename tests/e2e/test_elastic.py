"""Drafters leave and come back on a real server: their processes end, the pool takes their bytes, no text changes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from covey.launcher import Server
from covey.supervision import processes
from covey_client.cli import main
from covey_client.reports import Reports
from tests import waiting
from tests.e2e.serving import generate, served
from tests.e2e.serving import streams as served_meanwhile

pytestmark = pytest.mark.e2e

PROMPT = "User: What did you do at the weekend?\nAssistant:"
SECONDS = 180.0
GROWN = 64 << 20  # bytes that a drafter may hold more when it leaves than when it came
MODELS = '"target", "tokenize", "detokenize", "covey", "covey_unary", "ensemble"'
BUNDLED = f"""
models = [{MODELS}, "draft_general", "draft_code"]
[target]
threads = 1
kv_memory_mb = 4
[speculation]
policy = "off"
drafters = ["draft_general", "draft_code"]
[drafter]
kv_memory_mb = 6
[memory]
policy = "thresholds"
calm_seconds = 1.0
"""
EMULATED = f"""
models = [{MODELS}, "draft_code", "draft_math"]
[target]
kind = "emulated"
kv_memory_mb = 512
[scheduler]
token_budget = 2048
[speculation]
policy = "fixed:2"
drafters = ["draft_code", "draft_math"]
[memory]
policy = "thresholds"
calm_seconds = 0.2
[emulated]
costs = "emulated-7b-24g-five"
kv_token_bytes = 524288
drafter_mb = 160
acceptance = ["draft_code:0.6", "draft_math:0.6"]
"""


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(EMULATED, tmp_path_factory.mktemp("elastic")) as server:
        yield server


def until(server: Server, found: Callable[[], object], seconds: float = SECONDS) -> None:
    waiting.until(found, lambda: (memory(server), server.log_text()[-3000:]), seconds)


def memory(server: Server) -> dict[str, Any]:
    return Reports(server.http_url).memory()


def states(server: Server) -> dict[str, str]:
    """Empty while the server cannot say."""
    return {name: each["state"] for name, each in memory(server)["drafters"].items()}


def wish(server: Server, action: str, name: str) -> None:
    Reports(server.http_url).wish(action, name, server.control.secret)


def is_away(server: Server, name: str) -> bool:
    return states(server)[name] == "unloaded" and name not in processes.by_model(server.pid)


def is_back(server: Server, name: str) -> bool:
    return states(server)[name] == "serving" and name in processes.by_model(server.pid)


def gone(server: Server) -> set[str]:
    return {name for name, state in states(server).items() if state == "unloaded"}


def freed(server: Server, before: dict[str, Any]) -> int:
    """What drafters held that have gone since."""
    away = gone(server)
    now = {name: 0 if name in away else each["bytes"] for name, each in memory(server)["drafters"].items()}
    return sum(each["bytes"] - now[name] for name, each in before["drafters"].items())


def given_back(found: dict[str, Any], before: dict[str, Any]) -> bool:
    """Whether drafters have their memory again, and the pool no more than before but for what they hold less: a
    process that comes back may be smaller than the one that left."""
    less = {name: each["bytes"] - found["drafters"][name]["bytes"] for name, each in before["drafters"].items()}
    whole = all(less[name] < 0.03 * each["bytes"] for name, each in before["drafters"].items())
    return whole and bool(found["pool_bytes"] - before["pool_bytes"] <= max(0, sum(less.values())))


def largest(pid: int) -> int:
    """Private memory of its largest mapping that is no file's: the pool's. The others grow, too: models keep what they
    have prepared for each shape."""
    maps = psutil.Process(pid).memory_maps(grouped=False)
    pool = max((each for each in maps if each.path == "[anon]"), key=lambda each: int(each.size))
    return int(pool.private_clean + pool.private_dirty)


def streams(server: Server, count: int, min_tokens: int = 0) -> AbstractContextManager[None]:
    settings = {"max_tokens": 200, "min_tokens": min_tokens, "temperature": 1.0, "seed": 11}
    return served_meanwhile(server, PROMPT, settings, [{}] * count)


def test_a_burst_has_drafters_leave_and_calm_brings_them_back(tmp_path: Path) -> None:
    with served(BUNDLED, tmp_path) as server:
        until(server, lambda: all(each["bytes"] for each in memory(server)["drafters"].values()))
        before, target = memory(server), processes.named(server.pid)["target"]
        assert set(states(server).values()) == {"serving"}
        with streams(server, 40, 200):
            until(server, lambda: gone(server))
            until(server, lambda: 0.99 * freed(server, before) < memory(server)["pool_bytes"] - before["pool_bytes"])
            found = memory(server)
            assert not gone(server) & processes.by_model(server.pid).keys()
            gained = found["pool_bytes"] - before["pool_bytes"]
            assert gained <= freed(server, before) + GROWN
        until(server, lambda: all(is_back(server, name) for name in states(server)))
        until(server, lambda: given_back(memory(server), before))
        assert largest(target) < before["pool_bytes"] + 0.1 * gained, "and has gone back"


@pytest.mark.parametrize("transitions", [4, pytest.param(100, marks=pytest.mark.slow)])
def test_transitions_under_load_change_no_text(emulated: Server, transitions: int) -> None:
    with streams(emulated, 3):
        for turn in range(transitions // 2):
            name = ("draft_code", "draft_math")[turn % 2]
            wish(emulated, "unload", name)
            until(emulated, lambda name=name: is_away(emulated, name))
            until(emulated, lambda: memory(emulated)["blocks_gained"] > 0)
            wish(emulated, "load", name)
            until(emulated, lambda name=name: is_back(emulated, name))
    found = memory(emulated)
    assert found["blocks_gained"] == 0
    assert found["operations"]["load done"] >= transitions // 2


def killed(server: Server, name: str) -> None:
    """Kill a drafter's process on its way, as soon as there is one."""
    until(server, lambda: processes.named(server.pid).get(name))
    until(server, lambda: states(server)[name] != "unloaded")
    pid = processes.named(server.pid).get(name)
    with suppress(ProcessLookupError, TypeError):
        os.kill(pid, signal.SIGKILL)  # type: ignore[arg-type]  # it may be gone: that is the race


def test_a_death_while_it_leaves_is_overcome(emulated: Server) -> None:
    """The move is finished, the requests go on, and no bytes are lost."""
    with streams(emulated, 3):
        wish(emulated, "unload", "draft_code")
        killed(emulated, "draft_code")
        until(emulated, lambda: is_away(emulated, "draft_code"))
        wish(emulated, "load", "draft_code")
        until(emulated, lambda: is_back(emulated, "draft_code"))
        until(emulated, lambda: memory(emulated)["blocks_gained"] == 0)
    until(emulated, lambda: all(is_back(emulated, name) for name in states(emulated)))


@pytest.mark.slow
def test_a_death_as_it_begins_to_load_keeps_nobody_else(tmp_path: Path) -> None:
    """Triton may not notice it for as long as it runs: the requests go on, and another drafter comes and goes."""
    with served(EMULATED, tmp_path) as server:
        wish(server, "unload", "draft_code")
        until(server, lambda: is_away(server, "draft_code"))
        with streams(server, 3):
            wish(server, "load", "draft_code")
            killed(server, "draft_code")
            overlooked = "the process of draft_code ended while it was loading, and the server has not noticed"
            until(server, lambda: is_back(server, "draft_code") or overlooked in server.log_text())
            before = memory(server)["blocks_gained"]
            wish(server, "unload", "draft_math")
            until(server, lambda: is_away(server, "draft_math"))
            until(server, lambda: memory(server)["blocks_gained"] > before)
            wish(server, "load", "draft_math")
            until(server, lambda: is_back(server, "draft_math"))
            until(server, lambda: memory(server)["blocks_gained"] == before)


@pytest.mark.parametrize("model", ["covey", "covey_unary", "ensemble"])
def test_every_model_says_that_it_is_emulated(emulated: Server, model: str) -> None:
    assert generate(emulated, model, text_input=PROMPT, max_tokens=4)["emulated"] is True


def test_status_says_so_too(emulated: Server, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--url", emulated.http_url, "--metrics-url", emulated.metrics_url.split("/")[2]]
    assert main(["status", *where]) == 0
    said = capsys.readouterr().out
    assert "emulated emulated-7b-24g-five: on emulated" in said
    assert "no model runs" in said
    assert main(["status", *where, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["emulated"] is True
