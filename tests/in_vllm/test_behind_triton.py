"""vLLM's engine behind the public model of a real tritonserver: the same doors, fields, metrics and questions.

Runs where COVEY_VLLM_PYTHON names a Python with vLLM's build for CPUs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from covey.server import FREE, FREE_PORTS, Options, Server
from covey.server.front import Front
from covey.text.tokenization import load_tokenizer
from covey_client import Client, CoveyClientError, status
from loadtest.bench.peers.pipe import Pipe
from tests.in_vllm.serving import TARGET, engine, needs_vllm
from tests.waiting import until

pytestmark = [pytest.mark.e2e, *needs_vllm]

PROMPTS = [
    "English: Where is the station?\nGerman:",
    "def read_lines(path):\n",
    "User: Do you like films?\nAssistant:",
    "Question: Tom has 3 apples and buys 4 more. How many has he?\nAnswer:",
]
LENGTH = 40
SECONDS = 120.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = Options(
        **FREE_PORTS,
        profile="vllm",
        dtype="float32",
        log_file=tmp_path_factory.mktemp("vllm") / "tritonserver.log",
    )
    with Server(options) as running:
        yield running


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    """vLLM's own texts, without Covey."""
    tokenizer = load_tokenizer(TARGET)
    assert tokenizer is not None
    prompts = [tokenizer.encode(prompt).ids for prompt in PROMPTS]
    with ExitStack() as stack:
        plain: Pipe = engine(stack)
        asked: dict[str, Any] = {"lengths": [LENGTH] * len(prompts), "temperature": 0.0, "seed": 1}
        found: list[list[int]] = plain.call("serve", prompts=prompts, callers=2, **asked)["tokens"]
    return found


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.grpc_url) as made:
        yield made


def figures(server: Server) -> dict[str, float]:
    return status.figures(status.read(server.http_url, f"127.0.0.1:{server.options.metrics_port}").samples)


def engine_process(server: Server) -> psutil.Process | None:
    for each in psutil.Process(server.pid).children(recursive=True):
        with suppress(psutil.Error):  # it has ended
            if "covey_vllm.engine" in each.cmdline():
                return each
    return None


@pytest.mark.parametrize("speculation", ["auto", "off", "fixed:4"])
def test_texts_are_vllms_own_whatever_is_drafted(client: Client, expected: list[list[int]], speculation: str) -> None:
    for prompt, tokens in zip(PROMPTS, expected):
        chunks = list(client.stream(prompt, max_tokens=LENGTH, speculation=speculation, end_id=4095))
        assert [token for chunk in chunks for token in chunk.tokens] == tokens
        assert len(chunks) > 1
        usage = chunks[-1].usage
        assert (usage.input_tokens > 0, usage.output_tokens) == (True, LENGTH)
        assert (usage.draft_tokens > 0) or speculation != "fixed:4"
        assert (usage.draft_tokens == 0) or speculation != "off"


def test_a_request_names_its_drafter(client: Client) -> None:
    for name in ("draft_general", "draft_suffix"):
        found = client.generate(PROMPTS[0], max_tokens=LENGTH, speculation="fixed:3", drafter=name)
        assert set(found.usage.drafters) <= {name}
    assert found.usage.draft_tokens >= found.usage.accepted_draft_tokens > 0


def test_every_door_gives_the_same(server: Server, client: Client) -> None:
    text = client.generate(PROMPTS[1], max_tokens=LENGTH).text
    for model in ("covey", "covey_unary", "ensemble"):
        url = f"http://{server.http_url}/v2/models/{model}/generate"
        body = json.dumps({"text_input": PROMPTS[1], "max_tokens": LENGTH}).encode()
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=SECONDS) as answer:
            assert json.loads(answer.read())["text_output"] == text
    front = Front(replace(server.options, front_http_port=FREE, front_grpc_port=FREE), server.deaths)
    front.start()
    try:
        with openai.OpenAI(base_url=f"http://{front.http_url}/v1", api_key="none", max_retries=0) as asking:
            asked: dict[str, Any] = {"model": "covey", "max_tokens": LENGTH, "temperature": 0.0}
            parts = asking.completions.create(prompt=PROMPTS[1], stream=True, **asked)
            assert "".join(part.choices[0].text for part in parts) == text
            said = asking.chat.completions.create(messages=[{"role": "user", "content": "Hello!"}], **asked)
            assert said.choices[0].message.content
    finally:
        front.stop()


@pytest.mark.parametrize(
    "asked",
    [
        {"repetition_penalty": 1.3},
        {"presence_penalty": 0.5, "frequency_penalty": 0.3},
        {"min_tokens": 20, "end_id": 200},
        {"bad_words": ["return", "path"]},
        {"stop_words": ["return"]},
        {"return_log_probs": True, "top_logprobs": 3},
        {"grammar_regex": "[a-z ]{5,20}!"},
        {"grammar_json": '{"enum": ["yes", "no"]}'},
        {"grammar_lark": 'start: "yes" | "no"'},
        {"tenant": "another", "priority": 3},
    ],
    ids=lambda asked: next(iter(asked)),
)
def test_fields_mean_the_same_with_drafts_and_without(client: Client, asked: dict[str, Any]) -> None:
    found = [
        client.generate(PROMPTS[1], max_tokens=LENGTH, speculation=speculation, **asked)
        for speculation in ("off", "fixed:4")
    ]
    assert found[0].tokens == found[1].tokens
    assert found[0].log_probs == pytest.approx(found[1].log_probs, abs=1e-4)
    assert found[0].top_ids == found[1].top_ids
    if "bad_words" in asked:
        assert not any(word in found[0].text for word in asked["bad_words"])
    if "top_logprobs" in asked:
        assert (len(found[0].log_probs), len(found[0].top_ids)) == (LENGTH, 3 * LENGTH)
        assert found[0].top_ids[::3] == found[0].tokens
        assert found[0].top_log_probs[::3] == found[0].log_probs
    if "grammar_json" in asked:
        assert json.loads(found[0].text) in ("yes", "no")
    if "min_tokens" in asked:
        assert len(found[0].tokens) > 20
        assert 200 not in found[0].tokens[:20]


def test_tenants_share_no_prefix(client: Client) -> None:
    prompt = "".join(f"Line {line} of a text that is long enough.\n" for line in range(12))
    reused = [
        client.generate(prompt, max_tokens=4, tenant=tenant).usage.reused_tokens for tenant in ("one", "one", "two")
    ]
    assert reused[0] == reused[2] == 0
    assert reused[1] > 0


def test_a_top_k_without_a_top_p_ends_nobody(client: Client) -> None:
    found = client.generate(PROMPTS[1], max_tokens=LENGTH, temperature=1.0, top_k=5, seed=(1 << 64) - 1)
    assert len(found.tokens) == LENGTH
    assert client.generate(PROMPTS[1], max_tokens=LENGTH, temperature=1.0, top_k=1).tokens == (
        client.generate(PROMPTS[1], max_tokens=LENGTH).tokens
    )


def test_who_leaves_is_not_served_on(server: Server, client: Client) -> None:
    before = figures(server).get("covey_requests_total{outcome=cancelled}", 0.0)
    stream = client.stream(PROMPTS[2], max_tokens=1800, end_id=4095)
    next(stream)
    stream.cancel()
    until(lambda: figures(server).get("covey_requests_total{outcome=cancelled}", 0.0) > before)
    until(lambda: figures(server)["covey_requests_running"] == 0)
    assert figures(server)["covey_generation_tokens_total"] < 10_000


def test_metrics_and_decisions_are_told(server: Server, client: Client) -> None:
    client.generate(PROMPTS[2], max_tokens=LENGTH, end_id=4095)
    found = figures(server)
    assert found["covey_rounds_total"] > 0
    assert sum(value for name, value in found.items() if name.startswith("covey_planner_rounds_total")) > 0
    assert any(name.startswith("covey_spec_decode_num_accepted_tokens_total{drafter=") for name in found)
    assert not [name for name in found if name.startswith("covey_set_aside_total")]
    covey = Path(sys.executable).with_name("covey")
    words = [str(covey), "status", "--http-url", server.http_url, "--decisions", "3"]
    told = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert told.count("ms/token predicted/observed") == 3


@pytest.mark.parametrize("who", ["engine", "model"])
def test_a_model_whose_engine_or_process_dies_comes_back(
    server: Server, client: Client, expected: list[list[int]], who: str
) -> None:
    before = until(lambda: engine_process(server))
    (before if who == "engine" else before.parent()).kill()
    until(lambda: not before.is_running() or before.status() == psutil.STATUS_ZOMBIE)

    def answered() -> list[int]:
        try:
            return list(client.generate(PROMPTS[0], max_tokens=LENGTH, end_id=4095).tokens)
        except CoveyClientError:
            return []

    assert until(answered) == expected[0]
    after = engine_process(server)
    assert after is not None
    assert after.pid != before.pid


def test_nothing_is_left_when_it_stops() -> None:
    with Server(Options(**FREE_PORTS, profile="vllm")) as running:
        process = engine_process(running)
        assert process is not None
        children = psutil.Process(running.pid).children(recursive=True)
        assert running.stop()
    assert not [each for each in children if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
