"""Grammars, bias and the likeliest tokens through the real server: as with speculation, so without it."""

from __future__ import annotations

import json

import pytest

from covey.launcher import Server
from covey.supervision import processes
from covey_client import Client
from covey_client.errors import InvalidRequest

pytestmark = pytest.mark.e2e

SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green", "blue"]}, "done": {"type": "boolean"}},
    "required": ["colour", "done"],
    "additionalProperties": False,
}


@pytest.mark.timeout(600)
def test_answers_fit_and_are_the_same_without_drafts(server: Server) -> None:
    asked = {
        "max_tokens": 48,
        "temperature": 0.9,
        "seed": 4,
        "grammar_json": json.dumps(SCHEMA | {"x-guidance": {"whitespace_flexible": False}}),
        "top_logprobs": 3,
        "return_log_probs": True,
        "logit_bias_ids": [300],
        "logit_bias": [-100.0],
    }
    with Client(server.grpc_url) as client:
        plain = client.generate("Say it in JSON: ", **asked, speculation="off")
        found = json.loads(plain.text)
        assert found["colour"] in ("red", "green", "blue")
        assert plain.finish_reason == "eos"
        drafted = client.generate("Say it in JSON: ", **asked, speculation="fixed:4", drafter="draft_general")
        assert (drafted.tokens, drafted.top) == (plain.tokens, plain.top)
        assert drafted.usage.accepted_draft_tokens > 0
        assert [len(each) for each in plain.top] == [3] * len(plain.tokens)
        for token, score, top in zip(plain.tokens, plain.log_probs, plain.top):
            assert [each for _, each in top] == sorted((each for _, each in top), reverse=True)
            assert score == pytest.approx(dict(top).get(token, score), abs=1e-4)
        with pytest.raises(InvalidRequest, match="grammar_json"):
            client.generate("x", grammar_json="{")


def test_a_grammar_that_grows_too_large_on_its_way_is_its_sender_s_to_change(server: Server) -> None:
    hidden = "xxxxxxxx(b|c)" + "[ab]?" * 200 + "d"
    with Client(server.grpc_url) as client:
        for speculation in ("off", "fixed:4"):
            with pytest.raises(InvalidRequest, match="simpler"):
                client.generate("x", max_tokens=400, grammar_regex=hidden, speculation=speculation, seed=1)


def test_what_costs_too_much_is_refused_and_ends_nobody(server: Server) -> None:
    before = processes.by_model(server.pid)
    wide = {"type": "object", "properties": {f"k{number}": {"type": "string"} for number in range(700)}}
    hostile = {
        "grammar_json": ('{"type":"integer","multipleOf":300007}', json.dumps(wide)),
        "grammar_regex": ("a?" * 20000 + "a" * 5000, "xxxxxxxx(b|c)" + "a?" * 2000),
        "grammar_lark": ('start: %json {"type":"integer","multipleOf":300007}',),
    }
    with Client(server.grpc_url) as client:
        for name, texts in hostile.items():
            for text in texts:
                with pytest.raises(InvalidRequest, match=name):
                    client.generate("x", max_tokens=8, **{name: text})
        assert client.generate("x", max_tokens=8, grammar_json='{"type": "object"}').text.startswith("{")
    assert processes.by_model(server.pid) == before
