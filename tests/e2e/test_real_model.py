"""The model that `make serve` serves: what a first user asks it, drafts that change nothing, and structured answers."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from covey import prompts
from covey.launcher import FREE_PORTS, Options, Server, bundled, default_model
from covey.launcher.front import Front
from covey.models import dtypes
from covey_client import Client, status
from covey_client.rates import MetricsSnapshot
from loadtest import questions
from tests.fronts import fronting, library
from tests.waiting import until

HERE = bundled.folder(Options().state)
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not HERE.is_dir(), reason=f"{default_model.FETCH} has not fetched the model"),
]

FRANCE: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
QUESTIONS = (
    "Write a Python function that adds two numbers.",
    "Compute 12 * 7 step by step.",
    "Translate 'good morning' into French.",
    "Repeat this twice: the cat sat on the mat.",
)
NEAR = {"float32": 1e-3, "bfloat16": 0.25}  # of a logit: two tokens so close are told apart by how the target rounds


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log_file = tmp_path_factory.mktemp("real") / "log"
    with Server(default_model.chosen(Options(**FREE_PORTS, profile="", log_file=log_file))) as server:
        yield server
        server.kill()


@pytest.fixture(scope="module")
def door(real: Server) -> Iterator[Front]:
    with fronting(real) as front:
        yield front


@pytest.fixture(scope="module")
def asking(door: Front) -> Iterator[openai.OpenAI]:
    with library(door) as client:
        yield client


@pytest.fixture(scope="module")
def reference() -> Callable[[str, tuple[int, ...]], list[int]]:
    """What transformers' float32 says, token by token after the same text; the given one if two are as near."""
    rounds = NEAR[dtypes.on_cpu("auto", HERE)]
    tokenizer = AutoTokenizer.from_pretrained(HERE)
    model = AutoModelForCausalLM.from_pretrained(HERE, dtype="float32").eval()

    @torch.no_grad()
    def told(prompt: str, tokens: tuple[int, ...]) -> list[int]:
        start = tokenizer(prompt, add_special_tokens=False, return_tensors="pt").input_ids
        ids = torch.cat([start, torch.tensor([tokens])], dim=1)
        best = (logits := model(ids).logits[0, start.shape[1] - 1 : -1]).max(dim=-1)
        near = best.values - logits.gather(1, torch.tensor(tokens)[:, None])[:, 0] < rounds
        return [token if close else int(top) for token, close, top in zip(tokens, near, best.indices)]

    return told


def test_the_capital_of_france(real: Server, asking: openai.OpenAI) -> None:
    asked = {"model": "covey", "messages": FRANCE, "max_tokens": 24, "temperature": 0}
    whole = asking.chat.completions.create(**asked)  # type: ignore[call-overload]
    assert "Paris" in whole.choices[0].message.content
    parts = asking.chat.completions.create(**asked, stream=True)  # type: ignore[call-overload]
    assert "".join(part.choices[0].delta.content or "" for part in parts) == whole.choices[0].message.content
    with Client(real.grpc_url) as client:
        assert "Paris" in client.generate("The capital of France is", max_tokens=8).text


def test_a_chat_that_does_not_say_how_is_drawn_as_the_makers_advise(asking: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "Tell me about a town by the sea."}]

    def said(**sampling: float) -> str | None:
        chats = asking.chat.completions
        found = chats.create(model="covey", messages=messages, max_tokens=48, seed=11, **sampling)
        return found.choices[0].message.content

    assert said() == said(temperature=0.2, top_p=0.9)
    assert said(temperature=1) == said(temperature=1, top_p=0.9) != said()


def test_load_tests_ask_in_its_chat_form(real: Server, door: Front) -> None:
    asked = questions.of_server(door.http_url, real.metrics_url.split("/")[2])
    assert asked == questions.of_folder(str(HERE))
    said = AutoTokenizer.from_pretrained(HERE).decode(asked["chat"][0])
    assert said.endswith(f"<|im_start|>user\n{prompts.questions('chat')[0]}<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize("question", QUESTIONS)
def test_greedy_text_is_the_one_of_transformers_with_drafts_and_without(
    real: Server, reference: Callable[[str, tuple[int, ...]], list[int]], question: str
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(HERE)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
    )
    with Client(real.grpc_url) as client:
        plain = client.generate(prompt, max_tokens=32, speculation="off")
        drafted = client.generate(prompt, max_tokens=32, speculation="fixed:4")
    assert drafted.tokens == plain.tokens
    assert list(plain.tokens) == reference(prompt, plain.tokens)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_bundled_head_is_often_right_about_new_text(real: Server, temperature: float) -> None:
    drafted = accepted = 0
    with Client(real.grpc_url) as client:
        for seed, prompt in enumerate(questions.of_folder(str(HERE))["math"][:6]):
            said = client.generate(
                prompt,
                max_tokens=40,
                temperature=temperature,
                seed=seed,
                speculation="fixed:1",
                drafter="draft_smollm2",
            )
            drafted, accepted = drafted + said.usage.draft_tokens, accepted + said.usage.accepted_draft_tokens
    assert accepted > 0.3 * drafted > 0


def test_every_drafter_that_is_loaded_drafts(real: Server) -> None:
    """Sooner or later: whether the text's own drafts pay depends on what a round takes."""
    starts = itertools.count(1, 20)

    def drafted() -> bool:
        start = next(starts)
        with Client(real.grpc_url) as client:
            client.generate(f"Count from {start} to {start + 9}:", max_tokens=48)
        found = status.read(real.http_url, real.metrics_url.split("/")[2]).samples
        assert all(sample.value >= 0 for sample in found)
        by_name = MetricsSnapshot(0.0, found).by("covey_spec_decode_num_draft_tokens_total", "drafter")
        return all(by_name.get(name) for name in (*real.options.deployment().speculation.drafters, "lookup"))

    until(drafted, seconds=120)


def test_structured_answers_fit_their_schema(asking: openai.OpenAI) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    for seed in range(5):
        said = asking.chat.completions.create(
            model="covey",
            messages=[{"role": "user", "content": "Make up a person, as JSON with name and age."}],
            response_format=form,
            max_tokens=80,
            seed=seed,
            temperature=1,
        )
        assert said.choices[0].finish_reason == "stop"
        found = json.loads(said.choices[0].message.content or "")
        assert set(found) == {"name", "age"}
        assert isinstance(found["age"], int)
