"""A tokenizer with tokens that its model lacks: a request that has one is refused, and others do not notice."""

from __future__ import annotations

import json
import statistics
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from covey.supervision import processes
from covey_client import Client, InvalidRequest
from tests.e2e.serving import served
from tests.e2e.test_own_model import model
from tests.fronts import fronting

pytestmark = pytest.mark.e2e

SIZE = 400
PROFILE = """
models = ["target", "tokenize", "detokenize", "covey", "covey_unary", "ensemble", "draft_ngram"]
[target]
runtime = "{runtime}"
kv_memory_mb = 64
[speculation]
drafters = ["draft_ngram"]
"""
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
MARK = "<FILL_ME>"
REFUSED = f"got {SIZE}, allowed: token ids from 0 to {SIZE - 1}: the model lacks this one, '{MARK}'"


def refusal(where: str, body: dict[str, Any]) -> str:
    """The status and the error that a body gets. Triton's streams have their errors behind a status 200."""
    try:
        with urllib.request.urlopen(f"http://{where}", json.dumps(body).encode(), timeout=60) as response:
            return f"{response.status} {response.read().decode()}"
    except urllib.error.HTTPError as error:
        with error:
            return f"{error.code} {error.read().decode()}"


def first_token(client: Client) -> float:
    began = time.monotonic()
    stream = client.stream("one two three", max_tokens=24, min_tokens=24)
    next(stream)
    seconds = time.monotonic() - began
    assert sum(len(chunk.tokens) for chunk in stream) > 0
    return seconds


@pytest.mark.parametrize("runtime", ["native", pytest.param("torch", marks=pytest.mark.slow)])
def test_a_token_that_the_model_lacks_is_refused_at_every_door_beside_a_steady_client(
    tmp_path: Path, runtime: str
) -> None:
    folder = model(tmp_path / "mine", SIZE)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens([MARK])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    with (
        served(PROFILE.format(runtime=runtime), tmp_path, model=str(folder)) as server,
        fronting(server) as front,
        Client(server.grpc_url) as client,
    ):
        text, ids = f"{MARK} hi", [5, SIZE]
        v1, triton, own = f"{front.http_url}/v1", f"{server.http_url}/v2/models", f"{front.http_url}/v2/models"
        doors: list[Callable[[], str]] = [
            lambda: refusal(f"{v1}/completions", {"prompt": text}),
            lambda: refusal(f"{v1}/completions", {"prompt": ids, "stream": True}),
            lambda: refusal(f"{v1}/chat/completions", {"messages": [{"role": "user", "content": text}]}),
            lambda: refusal(f"{own}/covey/generate", {"text_input": text}),
            *(
                lambda name=name: refusal(f"{triton}/{name}/generate", {"text_input": text})
                for name in ("covey", "covey_unary", "ensemble")
            ),
            lambda: refusal(f"{triton}/covey/generate_stream", {"text_input": text, "stream": True}),
            lambda: refusal(f"{triton}/covey/generate", {"input_ids": ids}),
            lambda: refusal(f"{triton}/covey/generate", {"text_input": "hi", "bad_words": [MARK]}),
        ]
        before = processes.named(server.pid)["target"]
        for _ in range(3):
            first_token(client)
        alone = statistics.median(first_token(client) for _ in range(9))
        stopped, beside = threading.Event(), list[float]()

        def steady() -> None:
            with Client(server.grpc_url) as other:
                while not stopped.is_set():
                    beside.append(first_token(other))

        thread = threading.Thread(target=steady)
        thread.start()
        try:
            for door in doors:
                said = door()
                assert REFUSED in said
                assert said[:3] in ("200", "400"), "it is the request's fault"
            with pytest.raises(InvalidRequest, match=f"text_input: got {SIZE}"), Client(front.grpc_url) as caller:
                caller.generate(text)
            refused = refusal(f"{triton}/covey/generate", {"text_input": "hi", "grammar_lark": f"start: {MARK}"})
            assert "grammar_lark: got" in refused
            with Client(front.grpc_url) as caller:  # what the model has is served, such a tokenizer or not
                assert caller.generate("hi", max_tokens=4, stop_words=[MARK], grammar_regex="[a-z]+").tokens
        finally:
            stopped.set()
            thread.join(60)
        assert processes.named(server.pid)["target"] == before
        assert statistics.median(beside) <= 4 * alone
