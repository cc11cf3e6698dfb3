"""OpenAI's own library before the real server: responses, and prompts with log-probabilities."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseReasoningItem

from covey.launcher import Server
from covey.launcher.front import Front
from covey.requests.scheduler import SCORED
from covey_client import Client, InvalidRequest
from tests.e2e.test_openai import LENGTH, MESSAGES, PROMPT, TOOLS, thinker  # noqa: F401 - a fixture
from tests.fronts import fronting, library

pytestmark = pytest.mark.e2e

LONG = "User: Do you like films?\nAssistant: Yes, I do. Which one did you see last?\n" * 20 + "User:"
FLAT: list[Any] = [{"type": "function", **tool["function"]} for tool in TOOLS]
WEATHER: Any = {"type": "function", "name": "weather"}


@pytest.fixture(scope="module")
def asking(front: Front) -> Iterator[openai.OpenAI]:
    with library(front) as client:
        yield client


@pytest.mark.parametrize("prompt", [PROMPT, LONG], ids=["short", "longer than a pass scores"])
def test_an_echo_has_the_figures_of_the_generation(server: Server, asking: openai.OpenAI, prompt: str) -> None:
    """Bit for bit, cold and warm, with drafts and without; scored alone, with more output, in events and in batches."""
    asked: dict[str, Any] = {"model": "covey", "max_tokens": LENGTH, "seed": 3, "logprobs": 2, "timeout": 120}
    told = asking.completions.create(**asked, prompt=prompt, extra_body={"tenant": "writes"})
    own, count = told.choices[0].logprobs, len(told.choices[0].logprobs.tokens or ())  # type: ignore[union-attr]
    assert own is not None
    with Client(server.grpc_url) as client:  # which tells ids: the text may be cut into other tokens
        same = client.generate(prompt, max_tokens=LENGTH, seed=3, temperature=1.0, return_prompt_log_probs=True)
    text, ids = prompt + told.choices[0].text, [*same.prompt_ids, *same.tokens]
    assert told.usage is not None
    assert (told.usage.prompt_tokens > 2 * SCORED) == (prompt == LONG)
    scoring = {**asked, "prompt": ids, "echo": True, "extra_body": {"tenant": "scores"}}
    for most in (0, 0, 1):  # cold, then with KV of the same prompt in the cache
        choice = asking.completions.create(**{**scoring, "max_tokens": most}).choices[0]
        found = choice.logprobs
        assert found is not None
        assert found.tokens is not None
        assert found.token_logprobs is not None
        assert found.token_logprobs[0] is None
        end = len(found.tokens) - most
        assert found.tokens[end - count : end] == own.tokens
        assert found.token_logprobs[end - count : end] == own.token_logprobs
        assert found.top_logprobs is not None
        assert own.top_logprobs is not None
        assert found.top_logprobs[end - count : end] == own.top_logprobs
        assert choice.text.startswith(text)
        offsets = found.text_offset or []
        assert [text[at : at + len(token)] for at, token in zip(offsets, found.tokens[:end])] == found.tokens[:end]
    events = list(asking.completions.create(**{**scoring, "stream": True}))
    said = [value for event in events if (each := event.choices[0].logprobs) for value in each.token_logprobs or ()]
    assert said[:end] == found.token_logprobs[:end]
    assert len(said) == end + LENGTH
    both = asking.completions.create(
        **{**scoring, "prompt": [ids, list(same.prompt_ids)], "max_tokens": 0, "n": 2}
    ).choices
    scores = [choice.logprobs.token_logprobs for choice in both if choice.logprobs]
    assert scores[0] == scores[1] == found.token_logprobs[:end]
    assert scores[2] == scores[3] == found.token_logprobs[: end - count]


def test_triton_s_own_fields_score_a_prompt(server: Server, asking: openai.OpenAI) -> None:
    said = asking.completions.create(model="covey", prompt=PROMPT, echo=True, max_tokens=0, logprobs=1).choices[0]
    assert said.logprobs is not None
    for model in ("covey", "covey_unary", "ensemble"):
        with Client(server.grpc_url, model=model) as client:
            found = client.generate(PROMPT, max_tokens=0, return_prompt_log_probs=True, top_logprobs=1)
        assert [None, *found.prompt_log_probs] == said.logprobs.token_logprobs
        assert len(found.prompt_ids) == len(found.prompt_top) + 1 == found.usage.input_tokens
        assert (found.text, found.tokens, found.finish_reason, found.usage.reused_tokens) == ("", (), "length", 0)
    with Client(server.grpc_url) as client, pytest.raises(InvalidRequest, match="max_tokens: got 0"):
        client.generate(PROMPT, max_tokens=0)


def test_a_response_says_what_a_chat_says(asking: openai.OpenAI) -> None:
    common: dict[str, Any] = {"model": "covey", "temperature": 0.7, "top_p": 0.9}
    own: dict[str, Any] = {"extra_body": {"seed": 3}}
    told = [{"role": "system", "content": "Be short."}, *MESSAGES]
    chat = asking.chat.completions.create(**common, messages=told, max_tokens=LENGTH, logprobs=True, **own)  # type: ignore[arg-type]
    asked = {**common, **own, "instructions": "Be short.", "max_output_tokens": LENGTH, "metadata": {"a": "b"}}
    asked |= {"store": False, "include": ["message.output_text.logprobs"]}
    said = asking.responses.create(**asked, input="Do you like films?")
    assert said.output_text == chat.choices[0].message.content
    short = chat.choices[0].finish_reason == "length"
    assert said.status == ("incomplete" if short else "completed")
    assert (said.incomplete_details is not None and said.incomplete_details.reason == "max_output_tokens") == short
    assert (said.metadata, said.instructions, said.model) == ({"a": "b"}, "Be short.", "covey")
    assert said.usage is not None
    assert chat.usage is not None
    assert said.usage.input_tokens == chat.usage.prompt_tokens
    assert said.usage.output_tokens == chat.usage.completion_tokens
    (message,) = said.output
    assert isinstance(message, ResponseOutputMessage)
    part = message.content[0]
    assert part.type == "output_text"
    assert chat.choices[0].logprobs is not None
    scores = [each.logprob for each in chat.choices[0].logprobs.content or ()]
    assert [each.logprob for each in part.logprobs or ()] == scores
    listed = asking.responses.create(**asked, input=MESSAGES)
    assert listed.output_text == said.output_text


def test_a_response_in_events_is_the_same_one(asking: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "covey", "input": "Do you like films?", "max_output_tokens": LENGTH}
    own: dict[str, Any] = {"extra_body": {"seed": 5, "ignore_eos": True}}
    whole = asking.responses.create(**asked, **own)
    raw = list(asking.responses.create(**asked, **own, stream=True))
    kinds = [event.type for event in raw]
    assert kinds[:4] == [
        *("response.created", "response.in_progress"),
        *("response.output_item.added", "response.content_part.added"),
    ]
    assert kinds[-4:] == [
        *("response.output_text.done", "response.content_part.done"),
        *("response.output_item.done", "response.incomplete"),
    ]
    assert kinds.count("response.output_text.delta") > 1
    assert [event.sequence_number for event in raw] == list(range(len(raw)))
    assert "".join(event.delta for event in raw if event.type == "response.output_text.delta") == whole.output_text
    assert raw[-1].type == "response.incomplete"
    assert raw[-1].response.usage == whole.usage
    text: Any = {"format": {"type": "json_schema", "name": "side", "schema": {"enum": ["left", "right"]}}}
    with asking.responses.stream(
        **{**asked, "text": text}
    ) as events:  # whose end this library knows by one event alone
        said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        assert events.get_final_response().output_text == said
    assert json.loads(said) in ("left", "right")


def test_responses_call_functions_and_read_their_outputs(asking: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "covey", "tools": FLAT, "tool_choice": WEATHER, "parallel_tool_calls": False}
    asked |= {"max_output_tokens": 200, "extra_body": {"seed": 5}}
    said = asking.responses.create(**asked, input=MESSAGES)
    (call,) = said.output
    assert isinstance(call, ResponseFunctionToolCall)
    assert call.name == "weather"
    assert json.loads(call.arguments)["place"] in ("Rome", "Oslo")
    events = list(asking.responses.create(**asked, input=MESSAGES, stream=True))
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(deltas) == call.arguments
    assert len(deltas) > 1
    told: Any = [*MESSAGES, *(item.model_dump() for item in said.output)]
    told.append({"type": "function_call_output", "call_id": call.call_id, "output": "Rain."})
    again = asking.responses.create(model="covey", input=told, max_output_tokens=4, tools=FLAT, tool_choice="none")
    assert again.output_text


def test_what_a_response_thinks_is_an_item_of_its_own(thinker: openai.OpenAI) -> None:  # noqa: F811
    asked: dict[str, Any] = {
        "model": "covey",
        "input": MESSAGES,
        "max_output_tokens": LENGTH,
        "extra_body": {"seed": 5},
    }
    said = thinker.responses.create(**asked)
    (item,) = said.output
    assert isinstance(item, ResponseReasoningItem)
    assert item.content
    assert said.usage is not None
    assert 0 < said.usage.output_tokens_details.reasoning_tokens <= LENGTH + 1
    events = list(thinker.responses.create(**asked, stream=True))
    deltas = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
    assert "".join(deltas) == item.content[0].text
    again = thinker.responses.create(**{**asked, "input": [*MESSAGES, *(each.model_dump() for each in said.output)]})
    assert again.usage is not None
    assert again.usage.input_tokens >= said.usage.input_tokens


def test_the_model_has_the_names_that_it_was_given(server: Server) -> None:
    names = ("org/big-model", "gpt-4")
    with fronting(server, served_model_name=names) as made, library(made) as asking:
        assert tuple(each.id for each in asking.models.list()) == names
        for name in names:
            assert asking.models.retrieve(name).id == name
            assert asking.completions.create(model=name, prompt=PROMPT, max_tokens=1).model == name
            assert asking.responses.create(model=name, input="Hi", max_output_tokens=1).model == name
        with pytest.raises(openai.NotFoundError) as caught:
            asking.completions.create(model="covey", prompt=PROMPT)
        assert (caught.value.param, caught.value.code) == ("model", "model_not_found")
