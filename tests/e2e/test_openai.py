"""OpenAI's own library before the real server: every field, the same texts as through Triton's door, nothing left."""

from __future__ import annotations

import asyncio
import http.client
import json
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from covey.front.openai.fields import derived
from covey.server import Server
from covey.server.front import Front
from covey_client import Client, status
from covey_client.chat import Template

pytestmark = pytest.mark.e2e

PROMPT = "User: Do you like films?\nAssistant:"
MESSAGES: list[Any] = [{"role": "user", "content": "Do you like films?"}]
LENGTH = 24
OWN = {"slo_class": "chat", "speculation": "off", "priority": 3, "top_k": 40, "min_p": 0.01, "repetition_penalty": 1.1}


@pytest.fixture(scope="module")
def asking(front: Front) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://{front.http_url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def direct(server: Server) -> Iterator[Client]:
    """Triton's own door."""
    with Client(server.grpc_url) as client:
        yield client


def test_a_completion_is_the_same_through_triton(asking: openai.OpenAI, direct: Client) -> None:
    own = direct.generate(PROMPT, max_tokens=LENGTH, temperature=1.0, seed=7, return_log_probs=True)
    said = asking.completions.create(model="covey", prompt=PROMPT, max_tokens=LENGTH, seed=7, logprobs=0)
    choice = said.choices[0]
    assert choice.text == own.text
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs == pytest.approx(own.log_probs, abs=1e-4)
    assert said.usage is not None
    assert said.usage.completion_tokens == own.usage.output_tokens
    parts = list(asking.completions.create(model="covey", prompt=PROMPT, max_tokens=LENGTH, seed=7, stream=True))
    assert "".join(part.choices[0].text for part in parts) == own.text
    assert parts[-1].choices[0].finish_reason in ("stop", "length")


def test_a_chat_is_what_its_template_makes_of_it(server: Server, asking: openai.OpenAI, direct: Client) -> None:
    folder = server.options.repository_folder() / "target" / "1"
    prompt = Template.named(str(folder)).render(MESSAGES)
    settings: dict[str, Any] = {"temperature": 0.7, "seed": 3, "top_p": 0.9, "presence_penalty": 0.5}
    own = direct.generate(prompt, max_tokens=LENGTH, stop_words=["\n"], **settings)
    asked: dict[str, Any] = {"model": "covey", "messages": MESSAGES, "max_completion_tokens": LENGTH, "stop": "\n"}
    said = asking.chat.completions.create(**asked, **settings)
    assert said.choices[0].message.content == own.text
    parts = list(
        asking.chat.completions.create(**asked, **settings, stream=True, stream_options={"include_usage": True})
    )
    assert parts[0].choices[0].delta.role == "assistant"
    assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == own.text
    assert parts[-1].choices == []
    assert parts[-1].usage is not None
    assert said.usage is not None
    assert parts[-1].usage.completion_tokens == said.usage.completion_tokens == own.usage.output_tokens


def test_several_choices_draw_by_seeds_of_their_own(asking: openai.OpenAI, direct: Client) -> None:
    asked: dict[str, Any] = {"model": "covey", "prompt": PROMPT, "max_tokens": LENGTH, "seed": 5, "n": 3}
    said = asking.completions.create(**asked)
    seeds = [5, derived(5, 1), derived(5, 2)]
    own = [direct.generate(PROMPT, max_tokens=LENGTH, temperature=1.0, seed=seed).text for seed in seeds]
    assert len(set(own)) == 3
    assert [choice.text for choice in said.choices] == own
    texts = ["", "", ""]
    for part in asking.completions.create(**asked, stream=True):
        texts[part.choices[0].index] += part.choices[0].text
    assert texts == own


def test_covey_s_own_fields_and_what_drafting_brought(asking: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "covey", "messages": MESSAGES, "max_tokens": LENGTH, "temperature": 0.0}
    plain = asking.chat.completions.create(**asked, extra_body={**OWN, "ignore_eos": True, "min_tokens": 2})
    assert plain.usage is not None
    assert plain.usage.completion_tokens == LENGTH
    assert plain.model_extra is not None
    assert "metrics" not in plain.model_extra
    drafted = asking.chat.completions.create(**asked, extra_body={"speculation": "fixed:3", "drafter": "draft_ngram"})
    assert drafted.model_extra is not None
    found = drafted.model_extra["metrics"]["speculative_decoding"]
    assert found["num_spec_steps"] == sum(found["acceptance_histogram"])
    accepted = sum(place * count for place, count in enumerate(found["acceptance_histogram"]))
    assert found["num_accepted_draft_tokens"] == accepted
    assert found["mean_acceptance_length"] == pytest.approx(1 + accepted / found["num_spec_steps"])


def test_tokens_there_and_back(front: Front, asking: openai.OpenAI) -> None:
    def ask(path: str, body: dict[str, Any]) -> Any:
        host, _, port = front.http_url.partition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=30)
        connection.request("POST", path, json.dumps(body))
        answer = json.loads(connection.getresponse().read())
        connection.close()
        return answer

    found = ask("/tokenize", {"prompt": PROMPT})
    assert found["count"] == len(found["tokens"])
    assert ask("/detokenize", {"tokens": found["tokens"]}) == {"prompt": PROMPT}
    rendered = ask("/tokenize", {"messages": MESSAGES})
    assert ask("/detokenize", {"tokens": rendered["tokens"]}) == {"prompt": PROMPT}
    asked: dict[str, Any] = {"model": "covey", "max_tokens": 8, "temperature": 0.0}
    said = asking.completions.create(**asked, prompt=[PROMPT, "Once upon"])
    by_ids = asking.completions.create(**asked, prompt=found["tokens"])
    assert by_ids.choices[0].text == said.choices[0].text
    assert [choice.index for choice in said.choices] == [0, 1]


def test_wrong_fields_are_refused_by_name(asking: openai.OpenAI) -> None:
    wrong: tuple[tuple[str, dict[str, Any]], ...] = (
        ("temperature", {"temperature": -1.0}),
        ("stop", {"stop": ["x" * 1000]}),
        ("slo_class", {"extra_body": {"slo_class": "never"}}),
        ("max_tokens", {"max_tokens": 1 << 20}),
    )
    for name, fields in wrong:
        with pytest.raises(openai.BadRequestError) as caught:
            asking.completions.create(model="covey", prompt=PROMPT, **fields)
        assert caught.value.param == name, name
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        asking.models.retrieve("gpt-4")


def running(server: Server) -> float:
    samples = status.read(server.http_url, server.metrics_url.split("/")[2]).samples
    return sum(sample.value for sample in samples if sample.name == "covey_requests_running")


def test_many_streams_at_once_and_those_who_leave(server: Server, front: Front) -> None:
    """64 streams, half of which leave after their first text; then nothing runs, long before their ends."""

    async def ask(client: openai.AsyncOpenAI, number: int) -> str:
        leaves = number % 2
        stream = await client.completions.create(
            model="covey",
            prompt=f"Once upon a time {number}",
            max_tokens=900 if leaves else 6,
            temperature=0.0,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        text = ""
        async with stream:
            async for part in stream:
                text += part.choices[0].text
                if leaves and text:
                    break
        return text

    async def all_of_them() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"http://{front.http_url}/v1", api_key="x", max_retries=0) as client:
            return await asyncio.gather(*(ask(client, number) for number in range(64)))

    assert all(asyncio.run(all_of_them()))
    left = time.monotonic()
    while running(server):
        assert time.monotonic() - left < 5, "900 tokens take longer"
        time.sleep(0.02)
