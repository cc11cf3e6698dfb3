"""Killed processes: streams go on with the same tokens, or end with an error that says why; never a hang."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from covey.contracts.types import NO_INTS, TargetWork, Trees
from covey.launcher import Server, backend_dir
from covey.launcher.options import SOURCE
from covey.supervision import processes, rules
from covey.wire import codec
from covey_client import Client, CoveyClientError, Overloaded, ServerError
from loadtest.attack import spin
from tests.e2e.serving import post, served, total, works
from tests.fronts import fronting
from tests.waiting import until

pytestmark = pytest.mark.e2e

PROMPT = "User: What did you do at the weekend?\nAssistant:"
PROFILE = """
models = ["target", "covey", "covey_unary", "draft_code"]
[target]
threads = 1
kv_memory_mb = 256
[speculation]
drafters = ["draft_code"]
costs = ""
"""


# A target that ends, by a signal or an exception, in passes over requests of the tenant "SIGNAL TOKENS" that have so
# many tokens of output.
MORTAL = """
import importlib.util, os, signal

spec = importlib.util.spec_from_file_location("own", "{own}")
own = importlib.util.module_from_spec(spec)
spec.loader.exec_module(own)


class TritonPythonModel(own.TritonPythonModel):
    def initialize(self, args):
        super().initialize(args)
        step, opened = self._runner.step, {{}}

        def dying(work):
            opened.update((opening.tag, opening) for opening in work.opens if opening.tenant.startswith("SIG"))
            for tag, base in zip(work.tags.tolist(), work.base.tolist()):
                if tag in opened:
                    name, tokens = opened[tag].tenant.split()
                    if base - opened[tag].num_prompt >= int(tokens):
                        os.kill(os.getpid(), getattr(signal, name))
                        raise RuntimeError("it ends by an exception")
            return step(work)

        self._runner.step = dying
"""


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of this module's own, to be hurt; with one drafter, since each is a process that imports PyTorch."""
    folder = tmp_path_factory.mktemp("mortal")
    (folder / "backends" / "target").mkdir(parents=True)
    (folder / "backends" / "target" / "model.py").write_text(MORTAL.format(own=SOURCE / "target" / "model.py"))
    for name in backend_dir.backend_names(SOURCE):
        if name != "target":
            (folder / "backends" / name).symlink_to(SOURCE / name)
    repository = SOURCE.parent / "model_repository"
    with served(PROFILE, folder, backends=folder / "backends", model_repository=repository) as running:
        yield running


def slowest_load(log: str) -> float:
    """Return the longest time in seconds that a load of the target took, of those since the first."""
    found = re.findall(
        r'^I\d{4} (\d+):(\d+):(\S+) .*"(loading: target|successfully loaded \'target)', log, re.MULTILINE
    )
    times = [(int(hours) * 60 + int(minutes)) * 60 + float(seconds) for hours, minutes, seconds, _said in found]
    return max((end - start) % 86400 for start, end in zip(times[2::2], times[3::2]))


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
                    tensor = {"name": codec.REQUEST_TENSOR, "datatype": "INT32", "shape": [len(forged)]}
                    body = {"inputs": [tensor | {"data": forged.tolist()}]}
                    for model in ("target", "draft_code"):
                        assert "not of this server" in post(f"{mortal.http_url}/v2/models/{model}/infer", body)[1]
            tokens += chunk.tokens
    assert tuple(tokens) == undisturbed


def test_the_log_names_a_request_as_its_answer_does(mortal: Server) -> None:
    """From the front to the orchestrator, whose target dies meanwhile."""
    asked = {"prompt": PROMPT, "max_tokens": 120, "stream": True, "ignore_eos": True}
    with (
        fronting(mortal) as door,
        urllib.request.urlopen(
            f"http://{door.http_url}/v1/completions", json.dumps(asked).encode(), timeout=120
        ) as answer,
    ):
        name = answer.headers["x-request-id"]
        first = answer.readline()
        os.kill(processes.named(mortal.pid)["target"], signal.SIGKILL)
        assert b"[DONE]" in answer.read()
    assert json.loads(first.removeprefix(b"data: "))["id"] == f"cmpl-{name}"
    failed = [line for line in mortal.log_text().splitlines() if "target failed" in line]
    assert any(f"[request {name}]" in line for line in failed), failed


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_streams_survive_the_death_of_the_target(mortal: Server, number: signal.Signals) -> None:
    settings = {"max_tokens": 120, "temperature": 1.0, "min_tokens": 120}
    with Client(mortal.grpc_url) as client:
        undisturbed = [client.generate(PROMPT, seed=seed, **settings).tokens for seed in (1, 2)]
        halfway = threading.Barrier(3)

        def run(seed: int) -> tuple[int, ...]:
            tokens: list[int] = []
            waited = False
            for chunk in client.stream(PROMPT, seed=seed, timeout=120, **settings):
                tokens += chunk.tokens
                if not waited and len(tokens) > 10:
                    waited = True
                    halfway.wait(60)
            return tuple(tokens)

        with ThreadPoolExecutor(2) as pool:
            found = pool.map(run, (1, 2))
            halfway.wait(60)
            os.kill(processes.named(mortal.pid)["target"], number)
            assert list(found) == undisturbed


def test_requests_that_kill_the_target_fail_alone_beside_a_steady_client(mortal: Server) -> None:
    """SIGWINCH does nothing by itself: the pass then ends by an exception."""
    stopped, waits = threading.Event(), list[float]()

    def steady() -> None:
        with Client(mortal.grpc_url) as client:
            while not stopped.is_set():
                began = time.monotonic()
                assert client.generate(PROMPT, max_tokens=48, min_tokens=48, timeout=60).usage.output_tokens == 48
                waits.append(time.monotonic() - began)

    thread = threading.Thread(target=steady)
    thread.start()
    try:
        until(lambda: waits)
        began = time.monotonic()
        os.kill(processes.named(mortal.pid)["target"], signal.SIGKILL)
        with Client(mortal.grpc_url) as client:
            client.generate(PROMPT, max_tokens=48, min_tokens=48, timeout=60)
            once = time.monotonic() - began
            for way in ("SIGSEGV 0", "SIGKILL 5", "SIGABRT 12", "SIGWINCH 0"):
                began = time.monotonic()
                with pytest.raises(ServerError, match="2 times over this request, which is not tried again"):
                    client.generate(PROMPT, max_tokens=48, min_tokens=48, tenant=way, timeout=60)
                waits.append(time.monotonic() - began)
    finally:
        stopped.set()
        thread.join(60)
    assert max(waits) < max(10.0, 5 * once), (once, waits)


def test_twenty_requests_that_kill_the_target_at_once_make_nobody_wait(mortal: Server) -> None:
    """A long stream and newcomers are served meanwhile. Each killer is told that it fails for good, or to try again."""
    gaps, waits, ended = list[float](), list[float](), list[str]()

    def stream() -> None:
        with Client(mortal.grpc_url) as client:
            last = time.monotonic()
            for _ in client.stream(PROMPT, max_tokens=1500, min_tokens=1500, timeout=120):
                gaps.append(time.monotonic() - last)
                last += gaps[-1]

    def ask(way: str) -> None:
        began = time.monotonic()
        with Client(mortal.grpc_url) as client:
            client.generate(PROMPT, max_tokens=48, min_tokens=48, tenant=way, timeout=60)
        waits.append(time.monotonic() - began)

    def kill(way: str) -> None:
        began = time.monotonic()
        with pytest.raises(CoveyClientError) as caught:
            ask(way)
        waits.append(time.monotonic() - began)
        ended.append(str(caught.value))

    with ThreadPoolExecutor(24) as pool:
        streamed = pool.submit(stream)
        until(lambda: len(gaps) > 60)
        os.kill(processes.named(mortal.pid)["target"], signal.SIGKILL)
        ask("the first")
        (once,) = waits
        until(lambda: gaps[-1] < 1)
        ways = ["SIGSEGV 0", "SIGKILL 0", "SIGABRT 0", "SIGBUS 0", "SIGWINCH 0"]
        calls = [pool.submit(kill, way) for way in ways for _ in range(4)]
        while len(ended) < len(calls):
            with contextlib.suppress(Overloaded):  # it was in a pass with many of them
                ask("newcomer")
        for call in [*calls, streamed]:
            call.result(120)
    reload = max(once, slowest_load(mortal.log_text()))
    print(f"{reload:.1f} s after one death; {sorted(gaps)[-4:]}, {sorted(waits)}, {ended}")
    assert max(gaps + waits) < max(10.0, 5 * reload), (reload, sorted(gaps)[-4:], sorted(waits))
    assert all("not tried again" in said or "try again" in said for said in ended), ended


@pytest.mark.skipif(not spin.possible(), reason="it writes instructions of x86-64")
def test_a_model_that_runs_in_circles_comes_back(mortal: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for its answers within a time that is known."""
    monkeypatch.setattr(rules, "BUSY_SECONDS", 2.0)
    before = processes.named(mortal.pid)["covey_unary"]
    try:
        spin.spin(before)
    except PermissionError:
        pytest.skip("tracing is not allowed here")

    def is_back() -> bool:
        now = processes.named(mortal.pid).get("covey_unary", before)
        return now != before and mortal.control.states()["covey_unary"] == "READY"

    until(is_back, lambda: mortal.log_text()[-2000:], 90)
    assert works(mortal, "covey_unary")


def test_a_paused_unary_model_ends_nobody_else(mortal: Server) -> None:
    """Its request is in flight; going on after a pause would end all of tritonserver."""
    settings = {"max_tokens": 300, "temperature": 1.0, "min_tokens": 300, "seed": 4}
    with Client(mortal.grpc_url) as client:
        undisturbed = client.generate(PROMPT, **settings).tokens
        with Client(mortal.grpc_url, model="covey_unary", timeout=4) as caller, ThreadPoolExecutor(1) as pool:
            asked = pool.submit(caller.generate, PROMPT, **settings | {"max_tokens": 1500, "min_tokens": 1500})
            time.sleep(0.5)
            os.kill(processes.named(mortal.pid)["covey_unary"], signal.SIGSTOP)
            assert client.generate(PROMPT, timeout=120, **settings).tokens == undisturbed
            assert isinstance(asked.exception(90), CoveyClientError), "it was cut off"
    until(lambda: works(mortal, "covey_unary"))
    mortal.check()


def test_a_dead_orchestrator_is_an_error_not_a_hang(mortal: Server) -> None:
    with Client(mortal.grpc_url) as client:
        stream = client.stream(PROMPT, max_tokens=1500, temperature=1.0, min_tokens=1500, timeout=8)
        next(stream)
        os.kill(processes.named(mortal.pid)["covey"], signal.SIGKILL)
        with pytest.raises(CoveyClientError):
            list(stream)
    until(lambda: works(mortal, "covey"))
    until(lambda: not total(mortal, "covey_kv_blocks", state="used"))  # what the one that died had opened is nobody's
