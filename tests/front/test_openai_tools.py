"""Calls of functions: the form that a template shows, the grammar that holds answers to it, and how they are read."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer

from covey import grammar
from covey.front.openai import forms, prompts
from covey.front.openai.calls import Reading, Said, joined
from covey.front.openai.forms import Form, Marks
from covey.front.openai.tools import taken
from covey.tokenization import load_tokenizer
from covey_client.chat import Template
from covey_client.errors import InvalidRequest
from covey_client.response import Chunk, Usage
from tests.bundled import MODELS

FOLDER, END = MODELS / "target" / "1", 0
PLACE = {"enum": ["Rome", 'a "}]{" \\', "Zürich"]}
WEATHER = {"type": "object", "properties": {"place": PLACE, "days": {"$ref": "#/$defs/n"}}, "required": ["place"]}
WEATHER |= {"$defs": {"n": {"type": "integer", "minimum": 1, "maximum": 9}}, "additionalProperties": False}
NOW: dict[str, Any] = {"type": "function", "function": {"name": "now"}}
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "weather", "parameters": WEATHER}}, NOW]
LIST = (
    "{% for m in messages %}{% if m.role == 'user' %}{% if tools %}[TOOLS]{{ tools | tojson }}{% endif %}[INST]"
    "{{ m.content }}[/INST]{% elif m.tool_calls %}[TOOL_CALLS] [{% for c in m.tool_calls %}"
    '{{ (c.function | tojson)[:-1] }}, "id": "{{ c.id }}"}{{ ", " if not loop.last }}'
    "{% endfor %}]{% endif %}{% endfor %}"
)
ALONE = (
    "{{ tools | tojson }}{% for m in messages %}{% if m.tool_calls %}{% set f = m.tool_calls[0].function %}"
    '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}{% else %}{{ m.content }}{% endif %}{% endfor %}'
)
TEMPLATES = {"tags": Template.named(str(FOLDER)), "list": Template(LIST), "alone": Template(ALONE)}
MARKS = {"none": [], "own": [AddedToken("<tool_call>"), AddedToken("</tool_call>"), AddedToken("<think>")]}
MARKS["special"] = [AddedToken(each.content, special=True) for each in MARKS["own"]]
MARKS["special"].append(AddedToken("[TOOL_CALLS]", special=True))


def tokenizer(marks: str) -> tuple[Tokenizer, Marks]:
    found = load_tokenizer(FOLDER)
    assert found is not None
    found.add_tokens(MARKS[marks])
    ids = {each.content: found.token_to_id(each.content) for each in MARKS[marks]}
    return found, Marks(ids, frozenset(each.content for each in MARKS[marks] if each.special))


def form(name: str) -> Form:
    return forms.of_template(TEMPLATES[name].render)


def follower(rules: str, made: Tokenizer) -> Callable[[list[int]], list[int]]:
    """What a grammar allows after some tokens."""
    from llguidance import LLTokenizer

    known = LLTokenizer(made.to_str(), n_vocab=made.get_vocab_size(), eos_token=[END])
    compiled = grammar.of_lark(rules)
    assert not grammar.problem(compiled, known)
    kept = grammar.Grammar(compiled, known)

    def after(path: list[int]) -> list[int]:
        words = kept.after(path)
        return [] if words is None else np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist()

    return after


def chunk(text: str, tokens: list[int], reason: str = "") -> Chunk:
    return Chunk(text, tuple(tokens), (), reason, 1, Usage())


def read(reading: Reading, chunks: list[Chunk]) -> Said:
    told = [reading.feed(each) for each in chunks]
    parts = [part for each in told for part in each.tool_calls]
    return Said("".join(each.content for each in told), joined(parts), told[-1].finish_reason)


def chunks(made: Tokenizer, ids: list[int], rng: np.random.Generator, reason: str) -> list[Chunk]:
    """An answer cut anywhere, with texts as a server shows them."""
    found, shown, at = [], "", 0
    while at < len(ids):
        upto = min(len(ids), at + int(rng.integers(1, 5)))
        text = made.decode(ids[:upto], skip_special_tokens=True).rstrip("\ufffd")
        found.append(chunk(text[len(shown) :], ids[at:upto], reason if upto == len(ids) else ""))
        shown, at = text, upto
    return found


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize(
    ("name", "marks"),
    [("tags", "none"), ("tags", "own"), ("tags", "special"), ("list", "special"), ("list", "none"), ("alone", "none")],
)
def test_whatever_a_grammar_allows_is_read_as_calls_of_these_functions(name: str, marks: str, parallel: bool) -> None:
    made, known = tokenizer(marks)
    how, rng = form(name), np.random.default_rng(3)
    assert how.name == name
    wanted, _ = taken({"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": parallel})
    assert wanted is not None
    after, most = follower(forms.grammar(how, wanted, known), made), 0
    for _ in range(8):
        ids: list[int] = []
        while not ids or ids[-1] != END:
            ids.append(int(rng.choice(after(ids))))
            assert len(ids) < 2000
        said = read(Reading(how, known, required=True), chunks(made, ids, rng, "eos"))
        assert (said.content, said.finish_reason) == ("", "tool_calls")
        most = max(most, len(said.tool_calls))
        for call in said.tool_calls:
            arguments = json.loads(call["function"]["arguments"])
            if call["function"]["name"] == "now":
                assert arguments == {}
            else:
                assert call["function"]["name"] == "weather"
                assert arguments["place"] in PLACE["enum"]
                assert arguments.get("days", 1) in range(1, 10)
            assert len(call["id"]) == (9 if name == "list" else 29)
        assert len({call["id"] for call in said.tool_calls}) == len(said.tool_calls)
    assert most > 1 if parallel and name != "alone" else most == 1


@pytest.mark.parametrize(("name", "marks"), [("tags", "none"), ("tags", "own"), ("list", "special"), ("alone", "none")])
def test_words_are_free_until_a_call_begins(name: str, marks: str) -> None:
    made, known = tokenizer(marks)
    how, rng = form(name), np.random.default_rng(4)
    wanted, _ = taken({"tools": TOOLS})
    assert wanted is not None
    after = follower(forms.grammar(how, wanted, known), made)
    call = f"{how.begin}{how.head}now{how.key}{{}}{how.tail}{how.end}"
    for words in ("", "No <tool {", 'It says {"name": "x"}, <tool_call or [TOOL_CALLS'):
        ids = made.encode(words, add_special_tokens=False).ids
        assert END in after(ids)
        said = read(Reading(how, known, required=False), chunks(made, [*ids, END], rng, "eos"))
        assert said == Said(words, [], "eos")
        if not words or how.begin:
            ids += made.encode(call, add_special_tokens=False).ids
            assert END in after(ids)
            said = read(Reading(how, known, required=False), chunks(made, [*ids, END], rng, "eos"))
            assert (said.content, said.finish_reason) == (words, "tool_calls")
            assert [each["function"] for each in said.tool_calls] == [{"name": "now", "arguments": "{}"}]
    if marks == "own":  # spelt, and not the token
        ids = [
            token for part in ("<", "tool_call", ">", call.removeprefix(how.begin)) for token in made.encode(part).ids
        ]
        said = read(Reading(how, known, required=False), chunks(made, [*ids, END], rng, "eos"))
        assert said == Said(call, [], "eos")
    begun = made.encode(f"Yes {how.begin}" if how.begin else how.head, add_special_tokens=False).ids
    assert END not in after(begun)
    assert not set(made.encode(" x").ids) & set(after(begun))
    if marks == "own":
        assert made.token_to_id("<think>") in after([])


def test_a_call_that_is_cut_off_is_told_as_far_as_it_came() -> None:
    reading = Reading(form("tags"), Marks({}, frozenset()), required=False)
    said = read(
        reading, [chunk('Hm. <tool_call>\n{"name": "weather", "argum', []), chunk('ents": {"place": "Ro', [], "length")]
    )
    assert (said.content, said.finish_reason) == ("Hm. ", "length")
    assert [call["function"] for call in said.tool_calls] == [{"name": "weather", "arguments": '{"place": "Ro'}]
    whole = [chunk('<tool_call>\n{"name": "now", "arguments": {}', []), chunk("", [], "length")]
    assert read(Reading(form("tags"), Marks({}, frozenset()), required=True), whole).finish_reason == "length"
    held = read(Reading(form("tags"), Marks({}, frozenset()), required=False), [chunk("a <tool_c", [], "length")])
    assert held == Said("a <tool_c", [], "length")


def test_strict_schemas_are_held_whole_or_refused() -> None:
    _, known = tokenizer("none")
    odd = {"type": "object", "properties": {"a": {"type": "string", "format": "never heard of"}}}
    for strict in (False, True):
        tools = [{"type": "function", "function": {"name": "f", "parameters": odd, "strict": strict}}]
        wanted, _ = taken({"tools": tools, "tool_choice": "required"})
        assert wanted is not None
        assert "strict" not in wanted.told[0]["function"]
        found = grammar.problem(
            grammar.of_lark(forms.grammar(form("tags"), wanted, known)), grammar.tokenizer_of(str(FOLDER), 4096, (END,))
        )
        assert ("format" in found) == strict


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "shows its model no tools"),
        ("{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}", "in no form that is known here"),
        ("{{ tools }}{% if messages[1] %}{{ messages[1].tool_calls.a.b }}{% endif %}", "in no form .*: template"),
    ],
)
def test_templates_without_calls_are_refused(source: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        forms.of_template(Template(source).render)


def test_who_may_be_called() -> None:
    named = {"type": "function", "function": {"name": "now"}}
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named]}}
    for choice, names, required in (
        (named, ["now"], True),
        (allowed, ["now"], False),
        ("required", ["weather", "now"], True),
    ):
        wanted, rest = taken({"tools": TOOLS, "tool_choice": choice, "n": 2})
        assert wanted is not None
        assert [each.name for each in wanted.functions] == names
        assert (wanted.required, len(wanted.told), rest) == (required, 2, {"n": 2})
    for body in ({"tools": TOOLS, "tool_choice": "none"}, {"tools": []}, {"tool_choice": "auto"}, {}):
        assert taken(body) == (None, {})


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools: got 'custom'"),
        ({"tools": [NOW, NOW]}, "tools: got 'two functions of one name'"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools: got 'a b'"),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "array"}}}]},
            "a: parameters",
        ),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "no"}}}, "tool_choice: got 'no'"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice: got 'any'"),
        ({"tool_choice": "required"}, "tool_choice: got 'required'"),
        ({"tools": TOOLS, "parallel_tool_calls": 1}, "parallel_tool_calls: got 1"),
    ],
)
def test_tools_that_are_none_are_refused(body: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        taken(body)


def test_messages_tell_templates_arguments_as_objects() -> None:
    call = {"id": "x", "type": "function", "function": {"name": "now", "arguments": '{"a": 1}'}}
    said = prompts.messages([{"role": "assistant", "content": None, "tool_calls": [call]}])
    assert said[0]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert prompts.with_calls(said)
    for arguments in ("[1]", "{", 3):
        call["function"] = {"name": "now", "arguments": arguments}
        with pytest.raises(InvalidRequest, match="a JSON object's text"):
            prompts.messages([{"role": "assistant", "tool_calls": [call]}])
