"""The end of a server with the real `covey`: what it has taken ends whole, whichever public model took it."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from covey.launcher import FREE_PORTS, Options, Server
from covey.supervision import processes
from covey_client import Client, CoveyClientError
from tests.bundled import MODELS
from tests.e2e.serving import generate, served, total
from tests.waiting import until

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


def ask(server: Server, model: str, tokens: int) -> dict[str, Any]:
    fields = {"max_tokens": tokens, "min_tokens": tokens, "temperature": 1.0, "seed": 3}
    return generate(server, model, text_input="Once upon a time", **fields)


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
    names = '"target", "covey", "ensemble", "tokenize", "detokenize"'
    profile = PROFILE.replace('"target", "covey"', names)
    profile = profile.replace("[target]", f'[target]\nfolder = "{endless(tmp_path)}"')
    with served(profile, tmp_path) as server, ThreadPoolExecutor(1) as caller:
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
    with Server(options) as server, ThreadPoolExecutor(4) as pool:
        running = {model: pool.submit(ask, server, model, TOKENS) for model in PUBLIC}
        until(lambda: total(server, "covey_requests_running") == len(PUBLIC))
        stopping, late = pool.submit(server.stop), dict[str, dict[str, Any]]()

        def refused() -> bool:
            said = {model: ask(server, model, 1) for model in PUBLIC if model not in late}
            late.update({model: answer for model, answer in said.items() if "error" in answer})
            return len(late) == len(PUBLIC)

        until(refused)
        assert not any(each.done() for each in running.values()), "the machine is too fast for this test: more tokens"
        answers = {model: each.result() for model, each in running.items()}
    assert {model: answer.get("num_output_tokens") for model, answer in answers.items()} == dict.fromkeys(
        PUBLIC, TOKENS
    ), answers
    assert "draining" in late["covey"]["error"]
    assert stopping.result()


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
    options = {"drain_seconds": 3600.0, "stop_seconds": 2.0}  # Triton waits so long for a target that was reloaded
    with served(PROFILE, tmp_path, **options) as server, ThreadPoolExecutor(2) as pool:
        begun = threading.Event()

        def ask_whole() -> tuple[int, ...]:
            tokens: list[int] = []
            with Client(server.grpc_url, timeout=SECONDS) as client:  # a server waits longer for who stays connected
                for chunk in client.stream("Once upon a time", **settings):
                    begun.set()
                    tokens += chunk.tokens
            return tuple(tokens)

        known = ask_whole()
        begun.clear()
        asking = pool.submit(ask_whole)
        assert begun.wait(SECONDS)
        stopping = pool.submit(server.stop)
        until(lambda: server.control.states().get("covey") != "READY", seconds=SECONDS)
        os.kill(processes.named(server.pid)[hurt], way)
        assert stopping.result(SECONDS) is whole
        if whole:
            assert asking.result(SECONDS) == known
        else:
            assert isinstance(asking.exception(SECONDS), CoveyClientError)
