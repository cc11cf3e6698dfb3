"""What OpenAI's clients and vLLM's ask as fields of Covey, without a server."""

from __future__ import annotations

from typing import Any

import pytest

from covey.front.openai import fields
from covey_client.errors import InvalidRequest

SCHEMA = {"enum": ["left", "right"]}
TEXT = '{"enum": ["left", "right"]}'


def read(body: dict[str, Any], *, chat: bool = True, recommended: Any = None) -> Any:
    return fields.read(body, chat=chat, most_tokens=256, sampling=recommended or {}).settings


def settings(**body: Any) -> Any:
    return {name: value for name, value in read(body).items() if name.startswith("grammar")}


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ({}, {}),
        ({"json": None, "regex": None}, {}),
        ({"json": SCHEMA}, {"grammar_json": TEXT}),
        ({"json": TEXT, "regex": None, "disable_fallback": False}, {"grammar_json": TEXT}),
        ({"json": {"enum": ["é"]}}, {"grammar_json": '{"enum": ["é"]}'}),
        ({"regex": "a+"}, {"grammar_regex": "a+"}),
        ({"grammar": 'start: "a"'}, {"grammar_lark": 'start: "a"'}),
        ({"choice": ['"', "b"]}, {"grammar_lark": 'start: "\\"" | "b"'}),
        ({"json_object": True}, {"grammar_json": '{"type": "object"}'}),
    ],
)
def test_structured_outputs_are_the_grammars(said: dict[str, Any], meant: dict[str, str]) -> None:
    assert settings(structured_outputs=said) == meant
    assert settings(response_format={"type": "json_object"}) == {"grammar_json": '{"type": "object"}'}


def test_what_a_body_does_not_say_is_sampled_as_the_model_recommends() -> None:
    own = {"temperature": 0.2, "top_p": 0.9}
    assert read({}) == {"temperature": 1.0}
    assert read({}, recommended=own) == own
    assert read({"temperature": 0, "top_p": None}, recommended=own) == {"temperature": 0, "top_p": 0.9}


def test_each_choice_draws_by_a_seed_of_its_own_that_follows_from_the_request_s() -> None:
    seeds = [fields.of_choice({"seed": 7}, number)["seed"] for number in range(4)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 4
    assert seeds == [fields.of_choice({"seed": 7}, number)["seed"] for number in range(4)]
    assert fields.of_choice({"seed": 8}, 1)["seed"] != seeds[1]
    assert "seed" not in fields.of_choice({}, 1), "the server draws it"


def test_only_seeds_that_have_64_bits_are_mapped() -> None:
    """Others are refused by their range, where a request is built."""
    for value, mapped in ((0, 0), (-1, (1 << 64) - 1), (-(1 << 63), 1 << 63)):
        assert read({"seed": value})["seed"] == mapped
    for value in (1 << 64, -(1 << 63) - 1):
        assert read({"seed": value})["seed"] == value


@pytest.mark.parametrize(
    ("body", "own"),
    [
        *(({name: "a"}, {name: "a"}) for name in fields.GRAMMAR_FIELDS),
        ({"grammar_json": "", "grammar_regex": "a"}, {"grammar_regex": "a"}),
        ({"stop_words": ["a"]}, {"stop_words": ["a"]}),
        ({"stop_words": "a", "stop": "b"}, {"stop_words": ["b", "a"]}),
        ({"logit_bias_ids": [5], "logit_bias": [-1.5]}, {"logit_bias_ids": [5], "logit_bias": [-1.5]}),
        ({"logit_bias_ids": [], "logit_bias": {"5": 1}}, {"logit_bias_ids": [5], "logit_bias": [1]}),
    ],
)
def test_covey_s_own_fields_work_under_their_own_names(body: dict[str, Any], own: dict[str, Any]) -> None:
    assert read(body) == {"temperature": 1.0, **own}


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("logit_bias_ids", {"logit_bias_ids": [5]}),
        ("logit_bias_ids", {"logit_bias_ids": [5], "logit_bias": {"5": 1}}),
        ("logit_bias_ids", {"logit_bias_ids": 5, "logit_bias": [1]}),
        ("logit_bias_ids", {"logit_bias_ids": [5], "logit_bias": [1, 2]}),
        ("logit_bias_ids", {"logit_bias_ids": [5, 6], "logit_bias": [1]}),
        ("logit_bias", {"logit_bias": [1]}),
        ("stop_words", {"stop_words": 5}),
        ("grammar_regex", {"grammar_regex": 5}),
        ("grammar_json", {"grammar_regex": "a", "grammar_json": "{}"}),
        ("grammar_regex", {"grammar_regex": "a", "response_format": {"type": "json_object"}}),
        ("grammar_json", {"grammar_json": []}),
        ("return_log_probs", {"return_log_probs": True}),
        ("return_prompt_log_probs", {"return_prompt_log_probs": True}),
        ("exclude_input_in_output", {"exclude_input_in_output": False}),
        ("num_prompt_tokens", {"num_prompt_tokens": 3}),
        ("return_log_probs", {"return_log_probs": False, "logprobs": True}),
    ],
)
def test_an_own_field_that_would_have_no_effect_is_refused(field: str, body: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(body)
    assert fields.renamed(caught.value, body, chat=True).field == field


def test_an_own_field_may_only_say_what_the_route_decides() -> None:
    assert read({"exclude_input_in_output": True, "return_log_probs": False}, chat=False) == {"temperature": 1.0}
    assert read({"exclude_input_in_output": False, "echo": True}, chat=False)["exclude_input_in_output"] is False
    assert read({"top_logprobs": 3, "logprobs": 3}, chat=False)["top_logprobs"] == 3
    for body in ({"top_logprobs": 3}, {"top_logprobs": 3, "logprobs": True}):
        with pytest.raises(InvalidRequest, match="logprobs says how many"):
            read(body, chat=False)
    with pytest.raises(InvalidRequest, match="exclude_input_in_output: got True, allowed: only False"):
        read({"exclude_input_in_output": True, "echo": True}, chat=False)


def test_zero_and_one_are_no_booleans() -> None:
    for name, value in (("continue_final_message", 0), ("skip_special_tokens", 1), ("prompt_logprobs", False)):
        with pytest.raises(InvalidRequest, match=f"{name}: got"):
            settings(**{name: value})


@pytest.mark.parametrize(
    "body",
    [
        {"structured_outputs": []},
        {"structured_outputs": {"choice": ["a", ""]}},
        {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " "}},
        {"structured_outputs": {"json": SCHEMA, "regex": "a"}},
        {"response_format": {"type": "json_object"}, "structured_outputs": {"json": SCHEMA}},
    ],
)
def test_what_would_be_lost_of_a_grammar_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        settings(**body)
    assert caught.value.field in ("structured_outputs", "response_format")


@pytest.mark.parametrize(
    ("body", "own", "theirs"),
    [
        ({"max_completion_tokens": -1}, "max_tokens", "max_completion_tokens"),
        ({"max_tokens": -1}, "max_tokens", "max_tokens"),
        ({"structured_outputs": {"json": {}}}, "grammar_json", "structured_outputs"),
        ({"structured_outputs": {"regex": "("}}, "grammar_regex", "structured_outputs"),
        ({"response_format": {}}, "grammar", "response_format"),
        ({"messages": []}, "prompt", "messages"),
        ({"stop": ["a"]}, "stop_words", "stop"),
        *(({name: "("}, name, name) for name in ("return_log_probs", *fields.COMBINED)),
        ({"tools": [1]}, "grammar_lark", "tools"),
        ({"grammar_regex": "(", "tools": [1], "tool_choice": "none"}, "grammar_lark", "grammar_regex"),
        ({"grammar_regex": "("}, "grammar_lark", "grammar_regex"),
        ({"grammar_json": "", "response_format": SCHEMA}, "grammar_json", "response_format"),
        ({"structured_outputs": {}, "response_format": SCHEMA}, "grammar_json", "response_format"),
    ],
)
def test_an_error_has_the_name_that_the_body_has(body: dict[str, Any], own: str, theirs: str) -> None:
    error = fields.renamed(InvalidRequest(f"{own}: got this", own), body, chat=True)
    assert (error.field, str(error)) == (theirs, f"{theirs}: got this")


def test_rules_that_the_front_made_are_not_shown() -> None:
    long, bad = "at most 65536 bytes", "got 'start: x', allowed: a grammar that can be compiled: bad type"
    none = "no grammar can be made of it: bad type"
    for error, more, field, said in (
        (long, {}, "tools", f"tools: {long}"),
        (bad, {}, "tools", f"tools: {none}"),
        (bad, {"grammar_regex": "("}, "grammar_regex", f"grammar_regex and tools: {none}"),
    ):
        own = InvalidRequest(f"grammar_lark: {error}", "grammar_lark")
        found = fields.renamed(own, {"tools": [1], **more}, chat=True)
        assert (found.field, str(found)) == (field, said)


def test_who_ignores_the_end_is_told_to_say_how_many_tokens() -> None:
    error = InvalidRequest("max_tokens: got 256, allowed: at most 8", "max_tokens")
    said = fields.renamed(error, {"ignore_eos": True}, chat=True)
    assert (said.field, str(said)) == ("ignore_eos", "ignore_eos: got 256, allowed: at most 8; set max_tokens")
    assert fields.renamed(error, {"ignore_eos": True, "max_tokens": 256}, chat=True).field == "max_tokens"


def test_a_bias_has_as_many_tokens_as_covey_takes() -> None:
    with pytest.raises(InvalidRequest, match="1024"):
        read({"logit_bias": {str(token): 1 for token in range(1025)}})
