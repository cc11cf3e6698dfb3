"""The profile `emulated-7b` through the real server: its own text whatever is drafted, and it says what it is."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from covey import prompts
from covey.server import FREE_PORTS, Options, Server
from covey_client import Client

pytestmark = pytest.mark.e2e

PROMPTS = [prompts.load(domain)[0] for domain in prompts.DOMAINS]
PASS_SECONDS = 0.0152  # of one row, by the cost table


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log_file = tmp_path_factory.mktemp("emulated") / "tritonserver.log"
    options = Options(**FREE_PORTS, profile="emulated-7b", log_file=log_file, drain_seconds=5.0)
    with Server(options) as running:
        yield running
        running.kill()  # in order it takes long; that is for `test_drain` to see


def posted(server: Server, model: str, **fields: Any) -> dict[str, Any]:
    request = urllib.request.Request(
        f"http://{server.http_url}/v2/models/{model}/generate", data=json.dumps(fields).encode()
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


@pytest.mark.slow
def test_speculation_changes_no_text(emulated: Server) -> None:
    with Client(emulated.grpc_url) as client:
        for prompt in PROMPTS:
            plain = client.generate(prompt, max_tokens=40, speculation="off")
            assert plain.emulated
            assert plain.usage.output_tokens == 40, "a hash never ends a text"
            assert plain.usage.draft_tokens == 0
            assert plain.text
            for settings in ({"speculation": "fixed:4"}, {}, {"temperature": 1.0, "verification": "rejection"}):
                answer = client.generate(prompt, max_tokens=40, **settings)
                assert answer.tokens == plain.tokens, settings
                assert answer.text == plain.text


@pytest.mark.slow
def test_drafts_are_accepted_as_often_as_the_profile_says(emulated: Server) -> None:
    drafted = accepted = 0
    with Client(emulated.grpc_url) as client:
        for prompt in PROMPTS:
            usage = client.generate(prompt, max_tokens=200, speculation="fixed:1").usage
            drafted, accepted = drafted + usage.draft_tokens, accepted + usage.accepted_draft_tokens
    assert accepted / drafted == pytest.approx(0.6, abs=0.1)


def test_work_takes_at_least_the_tables_time(emulated: Server) -> None:
    with Client(emulated.grpc_url) as client:
        started = time.monotonic()
        client.generate(PROMPTS[0], max_tokens=40, speculation="off")
        assert time.monotonic() - started > 40 * PASS_SECONDS


@pytest.mark.parametrize("model", ["covey", "covey_unary", "ensemble"])
def test_every_model_says_that_it_is_emulated(emulated: Server, model: str) -> None:
    assert posted(emulated, model, text_input=PROMPTS[0], max_tokens=4)["emulated"] is True


def test_status_says_so_too(emulated: Server) -> None:
    covey = Path(sys.executable).parent / "covey"
    metrics = emulated.metrics_url.split("/")[2]
    words = [covey, "status", "--url", emulated.http_url, "--metrics-url", metrics]
    ran = subprocess.run(words, check=True, capture_output=True, text=True, timeout=60)
    assert "emulated emulated-7b-24g: on emulated" in ran.stdout
    assert "no model runs" in ran.stdout
    ran = subprocess.run([*words, "--json"], check=True, capture_output=True, text=True, timeout=60)
    assert json.loads(ran.stdout)["emulated"] is True
