"""OpenAI's routes before a server that answers on command: keys, tenants, errors, and what is sent on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from covey.front.keys import hashed
from covey.launcher import Server
from covey.launcher.front import Front
from covey_client import Client, InvalidRequest
from tests import fronts
from tests.fronts import fronting, library
from tests.waiting import until

pytestmark = pytest.mark.e2e

FOLDER = Path(__file__).resolve().parents[2] / "model_repository" / "target" / "1"
PAGE = "https://page.example"
PROFILE = """
models = ["covey", "covey_unary"]
[target]
folder = "{folder}"
[speculation]
drafters = []
[front]
keys = "{keys}"
origins = ["{page}"]
message_bytes = 65536
rate = 1000.0
"""
GOLD, SLOW = "key-of-gold", "key-of-slow"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(f"# who may ask\ngold {hashed(GOLD)}\nslow {hashed(SLOW)} 0.01 1\n")
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def front(canned_server: tuple[Server, Any], keys: Path) -> Iterator[Front]:
    profile = keys.with_name("front.toml")
    profile.write_text(PROFILE.format(folder=FOLDER, keys=keys, page=PAGE))
    with fronting(canned_server[0], profile=str(profile)) as made:
        yield made


@pytest.fixture(scope="module")
def asking(front: Front) -> Iterator[openai.OpenAI]:
    with library(front, GOLD) as client:
        yield client


def call(front: Front, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any, Any]:
    return fronts.call(front, method, path, body, **{"Authorization": f"Bearer {GOLD}", **headers})


def sent(asking: openai.OpenAI, **fields: Any) -> Any:
    """What `covey` was given."""
    return json.loads(asking.completions.create(model="covey", prompt="settings", **fields).choices[0].text)


def refused(asking: openai.OpenAI, said: str = ".", path: str = "completions", **body: Any) -> str | None:
    """The field for which a body is refused, with an error that says this."""
    with pytest.raises(openai.BadRequestError, match=said) as caught:
        asking.post(f"/{path}", body={"model": "covey", **body}, cast_to=object)
    assert caught.value.type == "invalid_request_error"
    return caught.value.param


def test_fields_are_sent_on_by_covey_s_names(asking: openai.OpenAI) -> None:
    plain = {"text_input": "settings", "stream": False, "tenant": "gold", "temperature": 1.0}
    assert sent(asking) == plain
    body = {"top_k": -1, "slo_class": "chat", "drafter": "d", "speculation": "off", "priority": 2, "ignore_eos": True}
    fields = {"temperature": 0.5, "stop": ["a", ""], "seed": -1, "max_tokens": 7, "logprobs": 0}
    fields |= {"presence_penalty": 1.5}
    assert sent(asking, **fields, extra_body={**body, "min_p": 0.25, "slo_ttft_ms": 9.5}) == {
        **plain,
        **{name: value for name, value in body.items() if name != "ignore_eos"},
        **{"temperature": 0.5, "seed": (1 << 64) - 1, "max_tokens": 7, "min_tokens": 7},
        **{"return_log_probs": True, "top_logprobs": 0, "presence_penalty": 1.5, "top_k": 0, "min_p": 0.25},
        **{"slo_ttft_ms": 9.5, "stop_words": ["a"]},
    }
    assert sent(asking, extra_body={"ignore_eos": True})["min_tokens"] == 256
    biased = sent(asking, logit_bias={"5": -100})
    assert (biased["logit_bias_ids"], biased["logit_bias"]) == (5, -100.0)
    assert sent(asking, logprobs=3)["top_logprobs"] == 3
    assert "return_prompt_log_probs" not in sent(asking, echo=True), "it costs"


def test_a_field_that_nobody_knows_has_no_effect(asking: openai.OpenAI) -> None:
    body = {"temprature": 1, "strange\r\nx: y": 2, "store": None}
    said = asking.completions.create(model="covey", prompt="count 1", extra_body=body)
    assert said.choices[0].text == "w0 "


def test_what_cannot_be_done_is_refused_by_its_name(asking: openai.OpenAI) -> None:
    """And with what to use instead."""
    tool = {"type": "function", "function": {"name": "f"}}
    wrong: dict[str, Any] = {"tools": [tool], "n": 0, "stop": 5, "logit_bias": [1], "stop_token_ids": [2]}
    for name, value in (*wrong.items(), ("n", True), ("truncate_prompt_tokens", 5), ("skip_special_tokens", False)):
        assert refused(asking, prompt="count 1", **{name: value}) == name
    assert refused(asking, "use n, and", prompt="count 1", best_of=2) == "best_of"
    assert refused(asking, "use a prompt", prompt="count 1", suffix="a") == "suffix"
    assert refused(asking, "use echo and", prompt="count 1", prompt_logprobs=1) == "prompt_logprobs"
    for more in ({}, {"echo": True}, {"logprobs": 1}):
        assert refused(asking, "or 0 with echo and logprobs", prompt="a", max_tokens=0, **more) == "max_tokens"
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    for messages in ([], [{}] * 5000, [{"content": "x"}], [picture]):
        assert refused(asking, path="chat/completions", messages=messages) == "messages"
    for body in ({"prompt": 5}, {"prompt": [[1], "a"]}, {}, {"prompt": ["a"] * 200}):
        assert refused(asking, **body) == "prompt"
    assert refused(asking, prompt=["count 1"] * 50, n=3) == "n"


def test_a_template_is_told_whatever_names_a_body_has(asking: openai.OpenAI) -> None:
    for name in ("messages", "self", "environment", "", "é"):
        asking.chat.completions.create(
            model="covey",
            messages=[{"role": "user", "content": "settings"}],
            extra_body={"chat_template_kwargs": {name: 1}},
        )


def test_a_stream_says_how_it_fails(asking: openai.OpenAI) -> None:
    with pytest.raises(openai.InternalServerError) as caught:
        asking.completions.create(model="covey", prompt="error [UNAVAILABLE] try again in 3 s", stream=True)
    assert (caught.value.status_code, caught.value.response.headers["retry-after"]) == (503, "3")
    parts = iter(asking.completions.create(model="covey", prompt="late 3", stream=True))
    assert [next(parts).choices[0].text for _ in range(2)] == ["w0 ", "w1 "]
    with pytest.raises(openai.APIError, match="the target failed"):
        next(parts)


def test_events_end_as_clients_expect(front: Front) -> None:
    body = {"prompt": ["count 2", "count 1"], "stream": True, "stream_options": {"include_usage": True}}
    status, said, headers = call(front, "POST", "/v1/completions", body)
    events = [line.removeprefix(b"data: ") for line in said.split(b"\n\n") if line]
    assert (status, headers["content-type"].partition(";")[0], events[-1]) == (200, "text/event-stream", b"[DONE]")
    assert headers["x-accel-buffering"] == "no", "nginx keeps the events"
    last = json.loads(events[-2])
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 3)
    assert all(json.loads(event)["usage"] is None for event in events[:-2])


def test_who_has_no_key_is_refused_at_every_door(front: Front) -> None:
    for key in ("none", "wrong"):
        with library(front, key) as client, pytest.raises(openai.AuthenticationError) as caught:
            client.completions.create(model="covey", prompt="count 1")
        assert caught.value.code == "invalid_api_key"
    with pytest.raises(openai.AuthenticationError), library(front, "wrong") as client:
        client.models.list()
    asked = {"text_input": "count 1"}
    assert call(front, "POST", "/v2/models/covey/generate", asked, Authorization="")[0] == 401
    assert call(front, "POST", "/v2/models/covey/generate", asked)[0] == 200
    with Client(front.grpc_url) as client, pytest.raises(InvalidRequest, match="authorization"):
        client.generate("count 1")
    assert call(front, "GET", "/health", Authorization="")[0] == 200


def test_a_key_is_its_owner_s_tenant(front: Front, asking: openai.OpenAI) -> None:
    assert sent(asking, extra_body={"tenant": "gold"})["tenant"] == "gold"
    assert refused(asking, prompt="a", tenant="other") == "tenant"
    body = {"text_input": "settings", "tenant": "other"}
    assert call(front, "POST", "/v2/models/covey/generate", body)[0] == 400


def test_a_key_has_bounds_of_its_own(front: Front, asking: openai.OpenAI) -> None:
    with library(front, SLOW) as client:
        for _ in range(4):  # the rate's burst, and what the longest message weighs
            client.completions.create(model="covey", prompt="count 1")
        with pytest.raises(openai.RateLimitError) as caught:
            client.completions.create(model="covey", prompt="count 1")
    assert int(caught.value.response.headers["retry-after"]) >= 1
    asking.completions.create(model="covey", prompt="count 1")


def test_text_that_is_no_unicode_is_refused(front: Front) -> None:
    for path, status, body in (
        ("/v1/completions", 400, {"prompt": "\ud800"}),
        ("/v1/chat/completions", 400, {"messages": [{"role": "user", "content": "\ud800"}]}),
        ("/v1/chat/completions", 404, {"model": "\ud800"}),
        ("/tokenize", 400, {"prompt": "\ud800"}),
    ):
        found, said, _ = call(front, "POST", path, body)
        assert (found, [json.loads(said)["error"]["param"]]) == (status, list(body))


def test_errors_before_a_route_are_shaped_as_well(front: Front) -> None:
    for method, path, body, status in (
        ("POST", "/v1/completions", b"x" * 70_000, 413),
        ("POST", "/v1/completions", b"{", 400),
        ("POST", "/v1/completions", {"model": "gpt-4", "prompt": "a"}, 404),
        ("GET", "/v1/models/gpt-4", None, 404),
        ("GET", "/v1/nothing", None, 404),
        ("GET", "/v1/responses/resp_1", None, 404),
        ("POST", "/chat/completions", {"messages": []}, 404),  # where a client was told no /v1
        ("GET", "/", None, 404),
        ("GET", "/v1/completions", None, 405),
        ("POST", "/v1/completions/", {"prompt": "a"}, 404),  # a redirect would name this process's own scheme
    ):
        found, said, _ = call(front, method, path, body)
        assert found == status, path
        assert json.loads(said)["error"]["message"]
    assert isinstance(json.loads(call(front, "GET", "/v2/nothing")[1])["error"], str), "Triton's clients read a text"


def test_only_pages_that_are_named_may_ask(front: Front) -> None:
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    status, _, headers = call(front, "OPTIONS", "/v1/chat/completions", Origin=PAGE, **asked)
    assert (status, headers["access-control-allow-origin"]) == (200, PAGE)
    status, _, headers = call(front, "OPTIONS", "/v1/chat/completions", Origin="https://other.example", **asked)
    assert (status, headers["access-control-allow-origin"]) == (400, None)
    assert call(front, "GET", "/v1/models", Origin=PAGE)[2]["access-control-allow-origin"] == PAGE


def test_models_and_tokens(front: Front, asking: openai.OpenAI) -> None:
    assert [(model.id, model.owned_by) for model in asking.models.list()] == [("covey", "covey")]
    nulls = {"prompt": "Grüße", "messages": None, "add_special_tokens": None, "model": None}
    tokens = json.loads(call(front, "POST", "/tokenize", nulls)[1])["tokens"]
    assert json.loads(call(front, "POST", "/detokenize", {"tokens": tokens})[1]) == {"prompt": "Grüße"}
    for path, body in (("detokenize", {"tokens": [1 << 40]}), ("tokenize", {"messages": []})):
        status, said, _ = call(front, "POST", f"/{path}", body)
        assert (status, [json.loads(said)["error"]["param"]]) == (400, list(body))


@pytest.mark.parametrize("stream", [False, True])
def test_a_caller_that_leaves_cancels_all_choices(
    canned_server: tuple[Server, Any], asking: openai.OpenAI, stream: bool
) -> None:
    marks = canned_server[1].marks
    (marks / "gold").unlink(missing_ok=True)
    if stream:
        with asking.completions.create(model="covey", prompt="slow 400", n=2, stream=True) as parts:
            next(iter(parts))
    else:
        with pytest.raises(openai.APITimeoutError):
            asking.completions.create(model="covey", prompt=["hang", "slow 400"], timeout=0.5)
    until((marks / "gold").exists, seconds=4.0)
