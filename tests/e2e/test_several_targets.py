"""Two targets in one server, whose drafter they share: each one's texts are its own, through every door."""

from __future__ import annotations

import operator
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from covey.care.processes import by_model
from covey.server import Server
from covey_client import Client, InvalidRequest
from tests.e2e.serving import served, total
from tests.waiting import until

pytestmark = pytest.mark.e2e

REPOSITORY = Path(__file__).resolve().parents[2] / "model_repository"
PROMPT = "User: What did you do at the weekend?\nAssistant:"
SETTINGS = {"max_tokens": 40, "min_tokens": 40, "temperature": 1.0, "seed": 5}
SERVER = """
models = ["tokenize", "detokenize", "covey", "covey_unary", "ensemble", "draft_chat"]
targets = ["large=large.toml", "small=small.toml"]
"""
ONE = """
models = ["draft_chat"]

[target]
threads = 1
kv_memory_mb = 64
folder = "{folder}"

[speculation]
policy = "fixed:3"
drafters = ["draft_chat"]
"""
TARGETS = ("large", "small")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two bundled drafters as targets: they load sooner than the bundled target."""
    folder = tmp_path_factory.mktemp("targets")
    for name, entry in zip(TARGETS, ("draft_general", "draft_code")):
        (folder / f"{name}.toml").write_text(ONE.format(folder=REPOSITORY / entry / "1"))
    with served(SERVER, folder) as server:
        yield server


@pytest.fixture(scope="module")
def plain(server: Server) -> dict[str, tuple[int, ...]]:
    """Each target's tokens without drafts."""
    with Client(server.grpc_url) as client:
        return {
            name: client.generate(PROMPT, target=name, speculation="off", timeout=120, **SETTINGS).tokens
            for name in TARGETS
        }


def each(server: Server, name: str) -> list[float]:
    """The sums of a metric over each target's series."""
    return [total(server, name, model=f"covey_{target}") for target in TARGETS]


def test_each_target_s_text_is_its_own_while_both_are_drafted_for(
    server: Server, plain: dict[str, tuple[int, ...]]
) -> None:
    assert plain["large"] != plain["small"]
    found: dict[tuple[str, int], tuple[tuple[int, ...], int]] = {}

    def run(name: str, turn: int) -> None:
        tokens: list[int] = []
        with Client(server.grpc_url) as client:
            for chunk in client.stream(PROMPT, target=name, speculation="fixed:3", timeout=120, **SETTINGS):
                tokens += chunk.tokens
                drafted = chunk.usage.draft_tokens
        found[name, turn] = tuple(tokens), drafted

    threads = [threading.Thread(target=run, args=(name, turn)) for name in TARGETS for turn in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(180)
        assert not thread.is_alive()
    assert {key: tokens for key, (tokens, _) in found.items()} == {
        (name, turn): plain[name] for name in TARGETS for turn in range(3)
    }
    assert all(drafted > 20 for _, drafted in found.values()), "nobody closes the other's tags"
    until(lambda: min(each(server, "covey_generation_tokens_total")) >= 120)  # metrics are written a few times a second
    assert total(server, "covey_generation_tokens_total", model="covey") == 0


def test_the_door_that_answers_once_leads_to_both(server: Server, plain: dict[str, tuple[int, ...]]) -> None:
    with Client(server.grpc_url, model="covey_unary") as client:
        for name in TARGETS:
            assert client.generate(PROMPT, target=name, timeout=120, **SETTINGS).tokens == plain[name]


def test_a_pipeline_s_text_is_made_behind_the_router(server: Server, plain: dict[str, tuple[int, ...]]) -> None:
    with Client(server.grpc_url) as client, Client(server.grpc_url, model="ensemble") as pipeline:
        for name in TARGETS:
            whole = client.generate(PROMPT, target=name, timeout=120, **SETTINGS)
            chunks = list(pipeline.stream(PROMPT, target=name, timeout=120, **SETTINGS))
            assert "".join(chunk.text for chunk in chunks) == whole.text
            assert tuple(token for chunk in chunks for token in chunk.tokens) == plain[name]


def test_a_target_that_is_not_here_is_refused(server: Server) -> None:
    with Client(server.grpc_url) as client, pytest.raises(InvalidRequest, match="large, small"):
        client.generate(PROMPT, target="huge", max_tokens=4, timeout=60)


def test_without_a_name_the_load_is_shared_and_a_prompt_goes_where_it_was(server: Server) -> None:
    before = each(server, "covey_generation_tokens_total")

    def run(index: int) -> None:
        with Client(server.grpc_url) as client:
            client.generate(f"{index} {PROMPT}", max_tokens=24, min_tokens=24, timeout=120)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    until(lambda: all(map(operator.lt, before, each(server, "covey_generation_tokens_total"))))
    long = "Every morning the old man walked down to the harbour to look at the boats. " * 8
    with Client(server.grpc_url) as client:
        client.generate(long, max_tokens=4, timeout=60)
        for _ in range(4):
            assert client.generate(long, max_tokens=4, timeout=60).usage.reused_tokens > 0


def test_a_client_that_leaves_ends_its_request_behind_the_router(server: Server) -> None:
    with Client(server.grpc_url) as client:
        for chunk in client.stream(PROMPT, target="small", max_tokens=400, min_tokens=400, timeout=120):
            if chunk.tokens:
                break
    until(lambda: not total(server, "covey_requests_running", model="covey_small"), seconds=15.0)


def test_a_stream_whose_target_dies_goes_on_from_where_it_was(server: Server) -> None:
    settings = SETTINGS | {"max_tokens": 200, "min_tokens": 200}
    tokens: list[int] = []
    with Client(server.grpc_url) as client:
        whole = client.generate(PROMPT, target="small", timeout=120, **settings).tokens
        for chunk in client.stream(PROMPT, target="small", timeout=120, resume=True, **settings):
            if len(tokens) <= 40 < len(tokens) + len(chunk.tokens):
                os.kill(by_model(server.pid)["covey_small"][0], signal.SIGKILL)
                assert client.generate("Hello", max_tokens=2, timeout=60).tokens, "the other one serves meanwhile"
            tokens += chunk.tokens
    assert tuple(tokens) == whole


def test_a_shared_drafter_that_dies_within_calls_drafts_again_for_both(
    server: Server, plain: dict[str, tuple[int, ...]]
) -> None:
    """What it was to answer later nobody answers."""
    ended, texts = threading.Event(), list[tuple[str, tuple[int, ...]]]()

    def run(name: str) -> None:
        with Client(server.grpc_url) as client:
            while not ended.is_set():
                texts.append((name, client.generate(PROMPT, target=name, timeout=120, **SETTINGS).tokens))

    def draft_for_both() -> None:
        drafts = "covey_spec_decode_num_drafts_total"
        before = each(server, drafts)
        until(lambda: all(map(operator.lt, before, each(server, drafts))), lambda: server.log_text()[-2000:])

    threads = [threading.Thread(target=run, args=(name,)) for name in TARGETS for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            draft_for_both()
            old = by_model(server.pid)["draft_chat"]
            os.kill(old[0], signal.SIGKILL)
            while by_model(server.pid).get("draft_chat", old) == old:
                server.check()
                time.sleep(0.05)
        draft_for_both()
    finally:
        ended.set()
        for thread in threads:
            thread.join(180)
    assert all(tokens == plain[name] for name, tokens in texts)
