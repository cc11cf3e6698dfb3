"""The end of a server with the real `covey`: what it has taken ends whole, whichever public model took it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from covey.launcher import FREE_PORTS, Options, Server
from covey.supervision import processes
from covey_client import Client, CoveyClientError
from tests.bundled import MODELS
from tests.e2e.serving import served, total

pytestmark = pytest.mark.e2e

SECONDS = 240.0
PROFILE = """
models = ["target", "covey"]
[target]
kind = "emulated"
kv_memory_mb = 512
[speculation]
drafters = []
[emulated]
costs = "emulated-7b-24g"
"""
PUBLIC = ("covey", "covey_unary", "ensemble")
TOKENS = 700
EMULATED = 250  # of 15 ms each: a drain and a death come sooner


def generate(server: Server, model: str, tokens: int) -> dict[str, Any]:
    body = {"text_input": "Once upon a time", "max_tokens": tokens, "min_tokens": tokens, "temperature": 1.0, "seed": 3}
    url = f"http://{server.http_url}/v2/models/{model}/generate"
    try:
        with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=60) as response:
            return dict(json.loads(response.read()))
    except urllib.error.HTTPError as error:
        with error:
            return {"status": error.code} | dict(json.loads(error.read()))


ENDLESS = "(?:a|a|aa)+$"  # a Split's pattern: of 16 letters a, and something else, it tries for a tenth of a second


def endless(folder: Path) -> Path:
    """A tokenizer whose regular expression runs for ever on some texts."""
    written = json.loads((MODELS / "target" / "1" / "tokenizer.json").read_text())
    split = {"type": "Split", "pattern": {"Regex": ENDLESS}, "behavior": "Isolated", "invert": False}
    written["pre_tokenizer"]["pretokenizers"].insert(0, split)
    (folder / "tokenizer.json").write_text(json.dumps(written))
    return folder


@pytest.mark.parametrize(
    ("model", "length"),
    [("covey", 6000), *(pytest.param(*case, marks=pytest.mark.slow) for case in (("covey", 200), ("ensemble", 1000)))],
)
def test_a_tokenizer_that_never_ends_does_not_hold_up_the_stop(model: str, length: int, tmp_path: Path) -> None:
    profile = tmp_path / "own.toml"
    folder = f'[target]\nfolder = "{endless(tmp_path)}"'
    names = '"target", "covey", "ensemble", "tokenize", "detokenize"'
    profile.write_text(PROFILE.replace("[target]", folder).replace('"target", "covey"', names))
    server = Server(Options(profile=str(profile), **FREE_PORTS, log_file=tmp_path / "tritonserver.log"))
    with server, ThreadPoolExecutor(1) as caller:
        body = {"text_input": ("a" * 16 + "!") * length, "max_tokens": 3}
        url = f"http://{server.http_url}/v2/models/{model}/generate"
        asked = caller.submit(urllib.request.urlopen, url, json.dumps(body).encode(), timeout=120)
        time.sleep(1.0)
        assert not asked.done()
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < 20.0
        assert isinstance(asked.exception(10.0), OSError)


def test_requests_in_flight_end_whole_and_new_ones_are_refused(tmp_path: Path) -> None:
    options = Options(
        **FREE_PORTS,
        log_file=tmp_path / "tritonserver.log",
        models=("target", "tokenize", "detokenize", *PUBLIC),
        drain_seconds=60.0,
    )
    with Server(options) as server:
        answers: dict[str, dict[str, Any]] = {}

        def ask(model: str) -> None:
            answers[model] = generate(server, model, TOKENS)

        threads = [threading.Thread(target=ask, args=(model,)) for model in PUBLIC]
        for thread in threads:
            thread.start()
        until = time.monotonic() + 60
        while total(server, "covey_requests_running") < len(PUBLIC):
            assert time.monotonic() < until, answers
        drained: list[bool] = []
        stopping = threading.Thread(target=lambda: drained.append(server.stop()))
        stopping.start()
        late: dict[str, dict[str, Any]] = {}
        while len(late) < len(PUBLIC):
            said = {model: generate(server, model, 1) for model in PUBLIC if model not in late}
            late |= {model: answer for model, answer in said.items() if "error" in answer}
            assert time.monotonic() < until, said
        assert not answers, "the machine is too fast for this test: more tokens"
        for thread in (*threads, stopping):
            thread.join()
    assert {model: answer.get("num_output_tokens") for model, answer in answers.items()} == dict.fromkeys(
        PUBLIC, TOKENS
    ), answers
    assert "draining" in late["covey"]["error"]
    assert drained == [True]


@pytest.mark.parametrize(
    ("hurt", "way", "whole"),
    [
        pytest.param("target", signal.SIGKILL, True, marks=pytest.mark.slow),
        ("target", signal.SIGSTOP, True),
        ("covey", signal.SIGKILL, False),
        pytest.param("tritonserver", signal.SIGKILL, False, marks=pytest.mark.slow),
    ],
)
def test_who_is_hurt_while_a_server_drains(tmp_path: Path, hurt: str, way: signal.Signals, whole: bool) -> None:
    """Whoever can still be answered is, and nobody waits for the others; what is said of them is true."""
    settings = {"max_tokens": EMULATED, "min_tokens": EMULATED, "temperature": 1.0, "seed": 5}
    with served(PROFILE, tmp_path, drain_seconds=3600.0) as server, Client(server.grpc_url, timeout=SECONDS) as client:
        known = client.generate("Once upon a time", **settings).tokens
        found: list[tuple[int, ...]] = []

        begun = threading.Event()

        def ask() -> None:
            tokens: list[int] = []
            with contextlib.suppress(CoveyClientError):
                for chunk in client.stream("Once upon a time", **settings):
                    begun.set()
                    tokens += chunk.tokens
                found.append(tuple(tokens))

        drained: list[bool] = []
        asking = threading.Thread(target=ask)
        stopping = threading.Thread(target=lambda: drained.append(server.stop()), daemon=True)
        asking.start()
        assert begun.wait(SECONDS)
        stopping.start()
        until = time.monotonic() + SECONDS
        while server.control.states().get("covey") == "READY":
            assert time.monotonic() < until
        os.kill(processes.named(server.pid)[hurt], way)
        for thread in (stopping, asking):
            thread.join(SECONDS)
        assert drained == [whole]
    assert found == ([known] if whole else [])
