"""What OpenAI's clients and vLLM's ask as fields of Covey, without a server."""

from __future__ import annotations

from typing import Any

import pytest

from covey.front.openai import fields
from covey_client.errors import InvalidRequest

SCHEMA = {"enum": ["left", "right"]}
TEXT = '{"enum": ["left", "right"]}'


def settings(**body: Any) -> Any:
    found = fields.read(body, chat=True, most_tokens=256, sampling={})
    return {name: value for name, value in found.settings.items() if name.startswith("grammar")}


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ({}, {}),
        ({"json": None, "regex": None}, {}),
        ({"json": SCHEMA}, {"grammar_json": TEXT}),
        ({"json": TEXT, "regex": None, "disable_fallback": False}, {"grammar_json": TEXT}),
        ({"regex": "a+"}, {"grammar_regex": "a+"}),
        ({"grammar": 'start: "a"'}, {"grammar_lark": 'start: "a"'}),
        ({"choice": ['"', "b"]}, {"grammar_lark": 'start: "\\"" | "b"'}),
        ({"json_object": True}, {"grammar_json": '{"type": "object"}'}),
    ],
)
def test_structured_outputs_are_the_grammars(said: dict[str, Any], meant: dict[str, str]) -> None:
    assert settings(structured_outputs=said) == meant


def test_what_a_body_does_not_say_is_sampled_as_the_model_recommends() -> None:
    def read(recommended: dict[str, float], **body: Any) -> Any:
        return fields.read(body, chat=True, most_tokens=256, sampling=recommended).settings

    assert read({}) == {"temperature": 1.0}
    assert read({"temperature": 0.2, "top_p": 0.9}) == {"temperature": 0.2, "top_p": 0.9}
    assert read({"temperature": 0.2, "top_p": 0.9}, temperature=0, top_p=None) == {"temperature": 0, "top_p": 0.9}


def test_a_json_object_is_no_number() -> None:
    assert settings(response_format={"type": "json_object"}) == {"grammar_json": '{"type": "object"}'}


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
    ],
)
def test_an_error_has_the_name_that_the_body_has(body: dict[str, Any], own: str, theirs: str) -> None:
    error = fields.renamed(InvalidRequest(f"{own}: got this", own), body, chat=True)
    assert (error.field, str(error)) == (theirs, f"{theirs}: got this")


def test_rules_that_the_front_made_are_not_shown() -> None:
    error = InvalidRequest(
        "grammar_lark: got 'start: x', allowed: a grammar that can be compiled: bad type", "grammar_lark"
    )
    said = fields.renamed(error, {"tools": [1]}, chat=True)
    assert (said.field, str(said)) == ("tools", "tools: no grammar can be made of it: bad type")
    long = fields.renamed(
        InvalidRequest("grammar_lark: at most 65536 bytes", "grammar_lark"), {"tools": [1]}, chat=True
    )
    assert str(long) == "tools: at most 65536 bytes"


def test_a_bias_has_as_many_tokens_as_covey_takes() -> None:
    with pytest.raises(InvalidRequest, match="1024"):
        fields.read({"logit_bias": {str(token): 1 for token in range(1025)}}, chat=True, most_tokens=256, sampling={})


def test_a_schema_is_as_long_as_its_text() -> None:
    assert settings(structured_outputs={"json": {"enum": ["é"]}}) == {"grammar_json": '{"enum": ["é"]}'}
