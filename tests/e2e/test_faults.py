"""Killed processes: streams go on with the same tokens, or end with an error that says why; never a hang."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from covey.care import processes, rules
from covey.contracts.types import NO_INTS, TargetWork, Trees
from covey.server import FREE, Options, Server
from covey.server.front import Front
from covey.wire import codec
from covey_client import Client, ConnectionLost, CoveyClientError, ServerError
from loadtest.attack import spin

pytestmark = pytest.mark.e2e

PROMPT = "User: What did you do at the weekend?\nAssistant:"
PROFILE = """
models = ["target", "covey", "covey_unary", "draft_chat"]
[target]
threads = 1
kv_memory_mb = 256
[speculation]
drafters = ["draft_chat"]
costs = ""
"""


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of this module's own, to be hurt; with one drafter, since each is a process that imports PyTorch."""
    folder = tmp_path_factory.mktemp("mortal")
    (folder / "mortal.toml").write_text(PROFILE)
    ports = {"http_port": FREE, "grpc_port": FREE, "metrics_port": FREE}
    with Server(Options(**ports, profile=str(folder / "mortal.toml"), log_file=folder / "log")) as running:
        yield running
        running.kill()  # in order it takes long; that is for `test_drain` to see


def stub(server: Server, model: str) -> int:
    """The process that runs a model."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
                parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
            if parent == server.pid and any(word.startswith(f"{model}_0_".encode()) for word in words):
                return int(folder.name)
    raise AssertionError(f"no process runs {model}")


def used_blocks(server: Server) -> float:
    with urllib.request.urlopen(server.metrics_url, timeout=10) as response:
        text = response.read().decode()
    found = re.search(r'^covey_kv_blocks\{[^}]*state="used"[^}]*\} (\S+)$', text, re.MULTILINE)
    assert found, "no such metric"
    return float(found[1])


def infer(server: Server, model: str, message: list[int]) -> str:
    """The error that a message from outside is answered with."""
    tensor = {"name": codec.REQUEST_TENSOR, "datatype": "INT32", "shape": [len(message)], "data": message}
    body = json.dumps({"inputs": [tensor]}).encode()
    request = urllib.request.Request(f"http://{server.http_url}/v2/models/{model}/infer", body)
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=30)
    with caught.value as response:
        return response.read().decode()


def test_forged_messages_disturb_nobody(mortal: Server) -> None:
    """Any client may send to any model: here, that the target free every tag that a stream could have."""
    settings = {"max_tokens": 100, "temperature": 1.0, "min_tokens": 100, "seed": 3, "speculation": "fixed:2"}
    forged = codec.encode(
        TargetWork(NO_INTS, NO_INTS, NO_INTS, Trees.empty(0), frees=tuple(range(64)), sequence=1, origin=1)
    )
    with Client(mortal.grpc_url) as client:
        undisturbed = client.generate(PROMPT, **settings).tokens
        tokens: list[int] = []
        for chunk in client.stream(PROMPT, timeout=60, **settings):
            if not tokens:
                for token in (0, 1):
                    codec.seal(forged, token)
                    for model in ("target", "draft_chat"):
                        assert "not of this server" in infer(mortal, model, forged.tolist())
            tokens += chunk.tokens
    assert tuple(tokens) == undisturbed


def test_the_log_names_a_request_as_its_answer_does(mortal: Server) -> None:
    """From the front to the orchestrator, whose target dies meanwhile."""
    door = Front(replace(mortal.options, front_http_port=FREE, front_grpc_port=FREE), mortal.deaths)
    door.start()
    try:
        host, _, port = door.http_url.partition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=120)
        asked = {"prompt": PROMPT, "max_tokens": 120, "stream": True, "ignore_eos": True}
        connection.request("POST", "/v1/completions", json.dumps(asked))
        with connection.getresponse() as answer:
            name = answer.headers["x-request-id"]
            first = answer.readline()
            os.kill(stub(mortal, "target"), signal.SIGKILL)
            assert b"[DONE]" in answer.read()
        connection.close()
    finally:
        door.stop()
    assert json.loads(first.removeprefix(b"data: "))["id"] == f"cmpl-{name}"
    failed = [line for line in mortal.log_text().splitlines() if "target failed" in line]
    assert any(f"[request {name}]" in line for line in failed), failed


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_streams_survive_the_death_of_the_target(mortal: Server, number: signal.Signals) -> None:
    settings = {"max_tokens": 120, "temperature": 1.0, "min_tokens": 120}
    with Client(mortal.grpc_url) as client:
        undisturbed = [client.generate(PROMPT, seed=seed, **settings).tokens for seed in (1, 2)]
        found: dict[int, tuple[int, ...]] = {}
        halfway = threading.Barrier(3)

        def run(seed: int) -> None:
            tokens: list[int] = []
            waited = False
            for chunk in client.stream(PROMPT, seed=seed, timeout=120, **settings):
                tokens += chunk.tokens
                if not waited and len(tokens) > 10:
                    waited = True
                    halfway.wait(60)
            found[seed] = tuple(tokens)

        threads = [threading.Thread(target=run, args=(seed,)) for seed in (1, 2)]
        for thread in threads:
            thread.start()
        halfway.wait(60)
        os.kill(stub(mortal, "target"), number)
        for thread in threads:
            thread.join(120)
    assert [found.get(1), found.get(2)] == undisturbed


@pytest.mark.skipif(not spin.possible(), reason="it writes instructions of x86-64")
def test_streams_survive_a_target_that_hangs_while_it_loads_and_so_does_a_drafter(
    mortal: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody's call would find that out. The drafter that dies meanwhile is back first."""
    monkeypatch.setattr(rules, "TIMES", 3.0)
    monkeypatch.setattr(rules, "LEAST_SECONDS", 6.0)
    settings = {"max_tokens": 60, "temperature": 1.0, "min_tokens": 60, "seed": 8}
    with Client(mortal.grpc_url) as client:
        undisturbed = client.generate(PROMPT, **settings).tokens
        target, drafter = (processes.by_model(mortal.pid)[model] for model in ("target", "draft_chat"))
        assert (len(target), len(drafter)) == (1, 1), processes.by_model(mortal.pid)
        stream = client.stream(PROMPT, timeout=150, **settings)
        tokens = list(next(stream).tokens)
        os.kill(target[0], signal.SIGKILL)
        while (loading := processes.by_model(mortal.pid).get("target", target)) == target:
            time.sleep(0.01)
        (hung,) = loading
        time.sleep(0.5)  # one that has ended before it said anything is overlooked
        try:
            spin.spin(hung)
        except PermissionError:
            pytest.skip("tracing is not allowed here")
        os.kill(drafter[0], signal.SIGKILL)
        back: list[str] = []
        deadline = time.monotonic() + 120
        while mortal.control.states()["target"] != "READY":
            assert time.monotonic() < deadline
            if not back and processes.by_model(mortal.pid).get("draft_chat", drafter) != drafter:
                back += ["draft_chat"] if mortal.control.states()["draft_chat"] == "READY" else []
            time.sleep(0.1)
        assert tuple(tokens + [token for chunk in stream for token in chunk.tokens]) == undisturbed
    assert back == ["draft_chat"]
    assert processes.state(hung) in ("", "Z")


def test_a_drafter_whose_load_fails_while_nobody_waits_for_it_comes_back(mortal: Server) -> None:
    """The orchestrator that had it loaded has died meanwhile. Nobody unloaded it: the next one brings it back."""
    old = processes.named(mortal.pid)
    os.kill(old["draft_chat"], signal.SIGKILL)
    while (loading := processes.named(mortal.pid).get("draft_chat", old["draft_chat"])) == old["draft_chat"]:
        time.sleep(0.01)
    os.kill(old["covey"], signal.SIGKILL)
    time.sleep(0.5)  # one that has ended before it said anything is overlooked
    os.kill(loading, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while processes.named(mortal.pid).get("draft_chat", loading) == loading or not mortal.control.ready():
        assert time.monotonic() < deadline, mortal.log_text()[-2000:]
        time.sleep(0.1)


@pytest.mark.skipif(not spin.possible(), reason="it writes instructions of x86-64")
def test_models_that_run_in_circles_come_back(mortal: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for their answers within a time that is known."""
    monkeypatch.setattr(rules, "BUSY_SECONDS", 2.0)
    models = ("covey", "covey_unary")
    before = processes.named(mortal.pid)
    try:
        for model in models:
            spin.spin(before[model])
    except PermissionError:
        pytest.skip("tracing is not allowed here")
    deadline = time.monotonic() + 90
    while True:
        running, states = processes.named(mortal.pid), mortal.control.states()
        if all(running.get(name, before[name]) != before[name] and states[name] == "READY" for name in models):
            break
        assert time.monotonic() < deadline, mortal.log_text()[-2000:]
        time.sleep(0.1)
    with Client(mortal.http_url, transport="http", model="covey_unary", timeout=30) as caller:
        assert caller.generate(PROMPT, max_tokens=3).tokens


@pytest.mark.budget(40)
@pytest.mark.skipif(not spin.possible(), reason="it writes instructions of x86-64")
def test_an_orchestrator_starts_though_nobody_loads_the_target_and_a_drafter_runs_in_circles(mortal: Server) -> None:
    """As it is when the one before was killed between the two halves of a reload."""
    settings = {"max_tokens": 30, "temperature": 1.0, "min_tokens": 30, "seed": 9}
    with Client(mortal.grpc_url) as client:
        undisturbed = client.generate(PROMPT, **settings).tokens
        drafter = stub(mortal, "draft_chat")
        try:
            spin.spin(drafter)
        except PermissionError:
            pytest.skip("tracing is not allowed here")
        os.kill(stub(mortal, "covey"), signal.SIGKILL)
        mortal.control.unload("target")
        deadline = time.monotonic() + 90
        while True:
            try:
                assert client.generate(PROMPT, timeout=10, **settings).tokens == undisturbed
                break
            except CoveyClientError:
                assert time.monotonic() < deadline, mortal.log_text()[-2000:]
                time.sleep(0.5)
    while processes.lives(drafter):  # nobody waits for it
        assert time.monotonic() < deadline, mortal.log_text()[-2000:]
        time.sleep(0.1)


def test_a_target_that_dies_while_nobody_asks_is_back_before_somebody_does(mortal: Server) -> None:
    before = stub(mortal, "target")
    os.kill(before, signal.SIGKILL)
    deadline = time.monotonic() + 90
    while processes.named(mortal.pid).get("target", before) == before or mortal.control.states()["target"] != "READY":
        assert time.monotonic() < deadline, mortal.log_text()[-2000:]
        time.sleep(0.1)
    with Client(mortal.grpc_url) as client:
        assert client.generate(PROMPT, max_tokens=3, timeout=30).tokens


def test_a_killed_drafter_costs_speed_alone_and_comes_back(mortal: Server) -> None:
    settings = {"max_tokens": 150, "temperature": 1.0, "min_tokens": 150, "seed": 5}
    with Client(mortal.grpc_url) as client:
        plain = client.generate(PROMPT, speculation="off", **settings)
        tokens: list[int] = []
        killed = False
        for chunk in client.stream(PROMPT, speculation="fixed:3", drafter="draft_chat", timeout=120, **settings):
            tokens += chunk.tokens
            if not killed and len(tokens) > 20:
                killed = True
                os.kill(stub(mortal, "draft_chat"), signal.SIGKILL)
        assert tuple(tokens) == plain.tokens
        deadline = time.monotonic() + 60
        while True:  # the supervisor reloads it; asking is what tells that it is dead
            again = client.generate(PROMPT, speculation="fixed:3", drafter="draft_chat", timeout=60, **settings)
            assert again.tokens == plain.tokens
            if again.usage.draft_tokens > 100:
                break
            assert time.monotonic() < deadline, "the drafter did not come back"


def test_a_paused_unary_model_ends_nobody_else(mortal: Server) -> None:
    """Its request is in flight; going on after a pause would end all of tritonserver."""
    settings = {"max_tokens": 300, "temperature": 1.0, "min_tokens": 300, "seed": 4}
    with Client(mortal.grpc_url) as client:
        undisturbed = client.generate(PROMPT, **settings).tokens
        ended: list[str] = []

        def ask() -> None:
            try:
                with Client(mortal.http_url, transport="http", model="covey_unary", timeout=8) as caller:
                    caller.generate(PROMPT, **settings | {"max_tokens": 1500, "min_tokens": 1500})
                ended.append("")
            except CoveyClientError as error:
                ended.append(str(error))

        thread = threading.Thread(target=ask)
        thread.start()
        time.sleep(0.5)
        before = stub(mortal, "covey_unary")
        os.kill(before, signal.SIGSTOP)
        assert client.generate(PROMPT, timeout=120, **settings).tokens == undisturbed
        thread.join(90)
        assert not thread.is_alive()
    assert ended
    assert ended[0], "it was cut off"
    deadline = time.monotonic() + 60
    while True:
        try:
            with Client(mortal.http_url, transport="http", model="covey_unary", timeout=5) as caller:
                assert caller.generate(PROMPT, max_tokens=3).tokens
                break
        except CoveyClientError:
            assert time.monotonic() < deadline
            time.sleep(0.5)
    mortal.check()


def test_a_dead_orchestrator_is_an_error_not_a_hang(mortal: Server) -> None:
    with Client(mortal.grpc_url) as client:
        errors: list[CoveyClientError] = []

        def run() -> None:
            try:
                for _chunk in client.stream(PROMPT, max_tokens=1500, temperature=1.0, min_tokens=1500, timeout=8):
                    started.set()
            except CoveyClientError as error:
                errors.append(error)

        started = threading.Event()
        thread = threading.Thread(target=run)
        thread.start()
        assert started.wait(30)
        os.kill(stub(mortal, "covey"), signal.SIGKILL)
        thread.join(40)
        assert not thread.is_alive()
    assert len(errors) == 1
    mortal.control.unload("covey")
    replace(mortal.control, seconds=60.0).load("covey")
    with Client(mortal.grpc_url) as client:
        deadline = time.monotonic() + 30
        while True:
            try:
                assert client.generate(PROMPT, max_tokens=3, timeout=20).tokens
                break
            except ServerError:
                assert time.monotonic() < deadline
                time.sleep(0.5)
    while used_blocks(mortal):  # what the one that died had opened is nobody's
        assert time.monotonic() < deadline, "blocks that nobody will free"
        time.sleep(0.1)


def test_a_killed_server_is_a_lost_connection(mortal: Server) -> None:
    with Client(mortal.grpc_url) as client:
        stream = client.stream(PROMPT, max_tokens=1500, temperature=1.0, min_tokens=1500, timeout=60)
        next(stream)
        mortal.kill()
        with pytest.raises(ConnectionLost):
            for _chunk in stream:
                pass
