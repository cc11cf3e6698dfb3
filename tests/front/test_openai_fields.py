"""What OpenAI's clients and vLLM's ask as fields of Covey, without a server."""

from __future__ import annotations

from typing import Any

import pytest

from covey.front.openai import fields
from covey_client.errors import InvalidRequest

SCHEMA = {"enum": ["left", "right"]}
TEXT = '{"enum": ["left", "right"]}'


def settings(**body: Any) -> Any:
    found = fields.read(body, chat=True, most_tokens=256)
    assert not found.unknown
    return {name: value for name, value in found.settings.items() if name.startswith("grammar")}


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ({}, {}),
        ({"json": None, "regex": None}, {}),
        ({"json": SCHEMA}, {"grammar_json": TEXT}),
        ({"json": TEXT, "regex": None, "disable_fallback": False}, {"grammar_json": TEXT}),
        ({"regex": "a+"}, {"grammar_regex": "a+"}),
        ({"json_object": True}, {"grammar_json": "{}"}),
    ],
)
def test_structured_outputs_are_the_grammars(said: dict[str, Any], meant: dict[str, str]) -> None:
    assert settings(structured_outputs=said) == meant


@pytest.mark.parametrize(
    "body",
    [
        {"structured_outputs": []},
        {"structured_outputs": {"choice": ["a", "b"]}},
        {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " "}},
        {"structured_outputs": {"json": SCHEMA, "regex": "a"}},
        {"structured_outputs": {"json": SCHEMA}, "guided_json": {"type": "object"}},
        {"response_format": {"type": "json_object"}, "guided_json": SCHEMA},
    ],
)
def test_what_would_be_lost_of_a_grammar_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        settings(**body)
    assert caught.value.field in ("structured_outputs", "response_format")
