"""OpenAI's own library before the real server: every field, the same texts as through Triton's door, nothing left."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from covey.front.openai.fields import derived
from covey.launcher import Server
from covey.launcher.front import Front
from covey_client import Client
from covey_client.chat import of_folder
from tests.e2e.serving import total
from tests.fronts import call, fronting, library
from tests.waiting import until

pytestmark = pytest.mark.e2e

PROMPT = "User: Do you like films?\nAssistant:"
MESSAGES: list[Any] = [{"role": "user", "content": "Do you like films?"}]
LENGTH = 24
OWN = {"slo_class": "chat", "speculation": "off", "priority": 3, "top_k": 40, "min_p": 0.01, "repetition_penalty": 1.1}


@pytest.fixture(scope="module")
def asking(front: Front) -> Iterator[openai.OpenAI]:
    with library(front) as client:
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
    prompt = of_folder(folder).render(MESSAGES)
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


def test_usage_may_come_with_every_event(asking: openai.OpenAI) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    asked: dict[str, Any] = {"model": "covey", "messages": MESSAGES, "max_tokens": LENGTH, "stream_options": options}
    found = [event.usage for event in asking.chat.completions.create(**asked, stream=True, seed=3)]
    counts = [each.completion_tokens for each in found if each]
    assert len(counts) == len(found) > 2
    assert counts == sorted(counts)
    assert 0 < counts[0] < counts[-1] == counts[-2]


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
    nothing = plain.model_extra["metrics"]["speculative_decoding"]
    assert nothing.pop("acceptance_histogram") == []
    assert set(nothing.values()) == {0}
    drafted = asking.chat.completions.create(**asked, extra_body={"speculation": "fixed:3", "drafter": "draft_ngram"})
    assert drafted.model_extra is not None
    found = drafted.model_extra["metrics"]["speculative_decoding"]
    assert found["num_spec_steps"] == sum(found["acceptance_histogram"])
    accepted = sum(place * count for place, count in enumerate(found["acceptance_histogram"]))
    assert found["num_accepted_draft_tokens"] == accepted
    assert found["mean_acceptance_length"] == pytest.approx(1 + accepted / found["num_spec_steps"])


def test_grammars_stop_words_and_biases_work_by_covey_s_own_names(asking: openai.OpenAI, direct: Client) -> None:
    def said(**own: Any) -> str | None:
        found = asking.chat.completions.create(
            model="covey", messages=MESSAGES, max_tokens=LENGTH, temperature=0, extra_body=own
        )
        return found.choices[0].message.content

    plain = said() or ""
    assert said(grammar_regex="(yes|no)!") in ("yes!", "no!")
    assert said(grammar_lark='start: "left" | "right"') in ("left", "right")
    assert json.loads(said(grammar_json='{"enum": [17, 42]}') or "") in (17, 42)
    word = plain.split()[2]
    assert said(stop_words=[word]) == plain[: plain.index(word)]
    first = direct.generate(PROMPT, max_tokens=1).tokens[0]
    asked = {"model": "covey", "prompt": PROMPT, "max_tokens": 1, "temperature": 0}
    biased = {"logit_bias_ids": [first], "logit_bias": [-100]}
    texts = [asking.completions.create(**asked, extra_body=own).choices[0].text for own in ({}, biased)]  # type: ignore[call-overload]
    assert texts[0] != texts[1]


def test_the_likeliest_tokens_and_an_output_that_fits_a_schema(asking: openai.OpenAI, direct: Client) -> None:
    own = direct.generate(PROMPT, max_tokens=8, temperature=1.0, seed=7, return_log_probs=True, top_logprobs=2)
    said = asking.completions.create(model="covey", prompt=PROMPT, max_tokens=8, seed=7, logprobs=2)
    found = said.choices[0].logprobs
    assert found is not None
    assert found.top_logprobs is not None
    likeliest = [max(place.values()) for place in found.top_logprobs]
    assert likeliest == pytest.approx([top[0][1] for top in own.top], abs=1e-4)
    schema: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["left", "right"]}}}
    fits = asking.chat.completions.create(
        model="covey", messages=MESSAGES, max_tokens=LENGTH, response_format=schema, logprobs=True, top_logprobs=1
    )
    assert fits.choices[0].message.content in ('"left"', '"right"')
    assert fits.choices[0].logprobs is not None
    assert fits.choices[0].logprobs.content is not None
    assert all(len(place.top_logprobs) == 1 for place in fits.choices[0].logprobs.content)


@pytest.mark.parametrize("stop", [None, "\u00e9\u00e9"])
def test_the_bytes_of_half_characters_are_the_text(asking: openai.OpenAI, stop: str | None) -> None:
    """Where each token begins is the same in a stream, whose text waits for stop words and for whole characters."""
    asked: dict[str, Any] = {"model": "covey", "seed": 3, "max_tokens": LENGTH, "stop": stop}
    own = {"structured_outputs": {"regex": "[\u00e9-\u00eb]{4}"}}
    said = asking.chat.completions.create(**asked, messages=MESSAGES, logprobs=True, extra_body=own).choices[0]
    assert said.logprobs is not None
    assert said.logprobs.content is not None
    found = b"".join(bytes(token.bytes or []) for token in said.logprobs.content)
    assert found.decode(errors="ignore").startswith(said.message.content or "")
    assert any(token.token.startswith("token_id:") for token in said.logprobs.content)
    whole = asking.completions.create(**asked, prompt=PROMPT, logprobs=0, extra_body=own).choices[0].logprobs
    parts = asking.completions.create(**asked, prompt=PROMPT, logprobs=0, extra_body=own, stream=True)
    offsets = [at for part in parts if (each := part.choices[0].logprobs) for at in each.text_offset or []]
    assert whole is not None
    assert offsets == whole.text_offset
    assert offsets[-1] <= 4


WEATHER = {
    "type": "object",
    "properties": {"place": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["place", "days"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "parameters": WEATHER, "strict": True}},
    {"type": "function", "function": {"name": "now"}},
]


def called(asking: openai.OpenAI, **asked: Any) -> Any:
    """The answer that calls one function, which is the same whole and in events, with drafts and without."""
    asked |= {"model": "covey", "messages": MESSAGES, "tools": TOOLS, "seed": 5, "max_tokens": 200}
    asked |= {"tool_choice": {"type": "function", "function": {"name": "weather"}}, "parallel_tool_calls": False}
    said = asking.chat.completions.create(**asked).choices[0]
    assert (said.finish_reason, said.message.content) == ("tool_calls", None)
    assert said.message.tool_calls is not None
    (call,) = said.message.tool_calls
    assert call.type == "function"
    assert call.function.name == "weather"
    arguments = json.loads(call.function.arguments)
    assert arguments["place"] in ("Rome", "Oslo")
    assert arguments["days"] in range(1, 10)
    for speculation in ("off", "fixed:4"):
        events = list(asking.chat.completions.create(**asked, stream=True, extra_body={"speculation": speculation}))
        parts = [part for event in events for part in event.choices[0].delta.tool_calls or ()]
        assert [part.function.name for part in parts if part.function and part.function.name] == ["weather"]
        assert "".join(part.function.arguments or "" for part in parts if part.function) == call.function.arguments
        assert events[-1].choices[0].finish_reason == "tool_calls"
        assert len({event.id for event in events}) == 1
    return said.message


def answered(asking: openai.OpenAI, message: Any, **asked: Any) -> int:
    """Return how many tokens the model writes that is told what a function says."""
    told: list[Any] = [*MESSAGES, message.model_dump(exclude_none=True)]
    told.append({"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "Rain."})
    again = asking.chat.completions.create(model="covey", messages=told, max_tokens=4, **asked)
    assert again.usage is not None
    return int(again.usage.completion_tokens)


def test_functions_are_called_as_they_are_declared(asking: openai.OpenAI) -> None:
    assert answered(asking, called(asking), extra_body={"ignore_eos": True}) == 4


def test_a_model_may_answer_in_words_beside_its_tools(asking: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "covey", "messages": MESSAGES, "tools": TOOLS, "max_tokens": 12, "temperature": 0}
    said = asking.chat.completions.create(**asked).choices[0]
    assert said.message.tool_calls is None
    assert said.message.content
    events = list(asking.chat.completions.create(**asked, stream=True))
    assert "".join(event.choices[0].delta.content or "" for event in events) == said.message.content
    asked["tool_choice"] = "required"
    several = asking.chat.completions.create(**{**asked, "temperature": 1, "seed": 3, "n": 2, "max_tokens": 60})
    assert all(choice.message.tool_calls for choice in several.choices)


def test_words_beside_tools_fit_a_schema_unless_there_is_a_call(asking: openai.OpenAI) -> None:
    schema: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["left", "right"]}}}
    asked: dict[str, Any] = {"model": "covey", "messages": MESSAGES, "tools": TOOLS, "max_tokens": 60}
    for choice in asking.chat.completions.create(**asked, response_format=schema, seed=1, n=4).choices:
        assert choice.message.content in ('"left"', '"right"') if choice.message.content else choice.message.tool_calls
    held = asking.chat.completions.create(**asked, response_format=schema, seed=1, tool_choice="required").choices[0]
    assert held.message.content is None
    assert held.message.tool_calls


# Writes calls behind thoughts that the prompt begins.
THINKER = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    '{% for c in m.tool_calls or [] %}{{ \'\\n<tool_call>\\n{"name": "\' + c.function.name + \'", "arguments": \' }}'
    "{{ c.function.arguments | tojson + '}\\n</tool_call>' }}{% endfor %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|><think>\\n' }}"
    "{% if enable_thinking is false %}</think>{% endif %}{% endif %}"
)


@pytest.fixture
def thinker(server: Server, tmp_path: Path) -> Iterator[openai.OpenAI]:
    """A front whose model's template is another one."""
    own = server.options.repository_folder() / "target" / "1"
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((own / name).read_bytes())
    (tmp_path / "chat_template.jinja").write_text(THINKER)
    profile = tmp_path / "front.toml"
    profile.write_text(
        f'models = ["covey", "covey_unary"]\n[target]\nfolder = "{tmp_path}"\n[speculation]\ndrafters = []\n'
    )
    with fronting(server, profile=str(profile)) as made, library(made) as client:
        yield client


def test_calls_and_thoughts_before_them(thinker: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "covey", "messages": MESSAGES, "seed": 5, "max_tokens": LENGTH}
    thinking = thinker.chat.completions.create(**asked).choices[0].message
    assert thinking.content is None
    assert thinking.model_extra
    assert thinking.model_extra["reasoning_content"]
    assert answered(thinker, called(thinker, reasoning_effort="none"), tools=TOOLS) > 0


def test_tokens_there_and_back(front: Front, asking: openai.OpenAI) -> None:
    def ask(path: str, body: dict[str, Any]) -> Any:
        return json.loads(call(front, "POST", path, body)[1])

    found = ask("/tokenize", {"prompt": PROMPT})
    assert found["count"] == len(found["tokens"])
    assert ask("/detokenize", {"tokens": found["tokens"]}) == {"prompt": PROMPT}
    with_tools = ask("/tokenize", {"messages": MESSAGES, "tools": TOOLS})["tokens"]
    assert "weather" in ask("/detokenize", {"tokens": with_tools})["prompt"]
    rendered = ask("/tokenize", {"messages": MESSAGES})
    assert ask("/detokenize", {"tokens": rendered["tokens"]}) == {"prompt": PROMPT}
    asked: dict[str, Any] = {"model": "covey", "max_tokens": 8, "temperature": 0.0}
    said = asking.completions.create(**asked, prompt=[PROMPT, "Once upon"])
    by_ids = asking.completions.create(**asked, prompt=found["tokens"])
    assert by_ids.choices[0].text == said.choices[0].text
    assert [choice.index for choice in said.choices] == [0, 1]


def test_what_scrapes_vllm_finds_its_names(front: Front, asking: openai.OpenAI) -> None:
    asking.completions.create(model="covey", prompt=PROMPT, max_tokens=8, temperature=0.0)
    own = '{model_name="covey",engine="0"'
    wanted = [
        *(f"vllm:{name}_count{own}}}" for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds")),
        *(f"vllm:{name}_count{own}}}" for name in ("request_queue_time_seconds", "inter_token_latency_seconds")),
        *(f"vllm:request_{name}_tokens_count{own}}}" for name in ("prompt", "generation")),
        *(f"vllm:{name}{own}}}" for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")),
        f'vllm:request_success_total{own},finished_reason="',
        f"vllm:spec_decode_num_draft_tokens_total{own}}}",
    ]

    def missing() -> list[str]:
        with urllib.request.urlopen(f"http://{front.http_url}/metrics", timeout=30) as answer:
            said = answer.read().decode()
        return [each for each in wanted if f"\n{each}" not in said]

    until(lambda: not missing(), missing)


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
    until(lambda: not total(server, "covey_requests_running"), lambda: "900 tokens take longer", 5.0)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_accepts_what_is_exported(server: Server, front: Front, asking: openai.OpenAI) -> None:
    """Names of others are theirs: Triton's own, and on the front's port vLLM's, which have a colon."""
    asking.completions.create(model="covey", prompt=PROMPT, max_tokens=8)
    for url, others in ((server.metrics_url, ("nv_",)), (f"http://{front.http_url}/metrics", ("nv_", "vllm:"))):
        with urllib.request.urlopen(url, timeout=30) as answer:
            said = answer.read()
        words = ["promtool", "check", "metrics"]
        ran = subprocess.run(words, input=said, check=False, capture_output=True, timeout=60)
        assert b"covey_" in said
        found = (ran.stdout + ran.stderr).decode().splitlines()
        assert [line for line in found if not line.startswith(others) or "error" in line.lower()] == []
