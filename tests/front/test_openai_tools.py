"""Calls of functions: the form that a template shows, the grammar that holds answers to it, and how they are read."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer

from covey.front.openai import forms, generation
from covey.front.openai.delta import AnswerParser, Delta
from covey.front.openai.forms import Form
from covey.front.openai.marks import Marks
from covey.front.openai.thinking import ReasoningParser, Thinking
from covey.front.openai.thinking import known as thinking_of
from covey.front.openai.tool_calls import ToolCallParser, joined
from covey.front.openai.tools import Tools, taken
from covey.text import grammar
from covey.text.tokenization import load_tokenizer
from covey_client.chat import Template, of_folder
from covey_client.errors import InvalidRequest
from covey_client.response import Chunk, Usage
from tests.bundled import MODELS

if TYPE_CHECKING:
    from llguidance import LLTokenizer

FOLDER, END = MODELS / "target" / "1", 0
PLACE = {"enum": ["Rome", 'a "}]{" \\', "Zürich"]}
WEATHER = {"type": "object", "properties": {"place": PLACE, "days": {"$ref": "#/$defs/n"}}, "required": ["place"]}
WEATHER |= {"$defs": {"n": {"type": "integer", "minimum": 1, "maximum": 9}}, "additionalProperties": False}


def function(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


def declared(*tools: dict[str, Any], **body: Any) -> Tools:
    found, _ = taken({"tools": list(tools), **body})
    assert found is not None
    return found


NOW = function("now")
TOOLS = [function("weather", parameters=WEATHER), NOW]


def template(before: str, call: str, between: str = "", after: str = "") -> Template:
    """One that writes an assistant's calls so: `n` is a function's name and `a` its arguments."""
    calls = "{% for c in m.tool_calls or [] %}{% set n, a = c.function.name, c.function.arguments %}"
    calls += f"{{{{ {before!r} if loop.first else {between!r} }}}}{call}{{{{ {after!r} if loop.last }}}}{{% endfor %}}"
    return Template(
        "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
        f"{calls}<|end|>{{% endfor %}}{{% if add_generation_prompt %}}<|assistant|>{{% endif %}}"
    )


NAMED = '{"name": "{{ n }}", "arguments": {{ a | tojson }}}'
SINGLE = "{% if m.tool_calls | length > 1 %}{{ raise_exception('one') }}{% endif %}"
TEMPLATES = {
    "tags": of_folder(FOLDER),  # Hermes, Qwen2.5, Qwen3
    "list": template("[TOOL_CALLS] [", NAMED[:-1] + ', "id": "{{ c.id }}"}', ", ", "]"),  # Mistral
    "alone": template("", SINGLE + NAMED.replace("arguments", "parameters")),  # Llama 3
    "alone in a list": template("[", NAMED, ", ", "]"),  # xLAM
    "tagged list": template("<TOOLCALL>[", NAMED, ", ", "]</TOOLCALL>"),  # Nemotron, Granite
    "tagged": template("<|tool_call|>", NAMED + "<|/tool_call|>", "<|tool_call|>"),  # Phi-4-mini
    "marks": template("[TOOL_CALLS]", "{{ n }}[ARGS]{{ a | tojson }}", "[TOOL_CALLS]"),  # Devstral, Ministral
}
MULTIPLE = set(TEMPLATES) - {"alone"}
SPECIAL = ("[TOOL_CALLS]", "[ARGS]", "<TOOLCALL>")
MARKS = {"none": [], "own": [AddedToken("<tool_call>"), AddedToken("</tool_call>"), AddedToken("<think>")]}
MARKS["special"] = [AddedToken(each.content, special=True) for each in MARKS["own"]]
MARKS["special"] += [AddedToken(each, special=True) for each in SPECIAL]


@cache
def tokenizer(marks: str) -> tuple[Tokenizer, Marks]:
    found = load_tokenizer(FOLDER)
    assert found is not None
    found.add_tokens(MARKS[marks])
    ids = {each.content: found.token_to_id(each.content) for each in MARKS[marks]}
    return found, Marks(ids, frozenset(each.content for each in MARKS[marks] if each.special))


def form(name: str) -> Form:
    return forms.of_template(TEMPLATES[name].render)


@cache
def grammars_tokenizer(made: Tokenizer) -> LLTokenizer:
    from llguidance import LLTokenizer

    return LLTokenizer(made.to_str(), n_vocab=made.get_vocab_size(), eos_token=[END])


def follower(rules: str, made: Tokenizer) -> Callable[[list[int]], list[int]]:
    """What a grammar allows after some tokens."""
    known = grammars_tokenizer(made)
    compiled = grammar.of_lark(rules)
    assert not grammar.problem(compiled, known)
    kept = grammar.Grammar(compiled, known)

    def after(path: list[int]) -> list[int]:
        words = kept.after(path)
        return [] if words is None else np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist()

    return after


def chunk(text: str, tokens: list[int], reason: str = "") -> Chunk:
    return Chunk(text, tuple(tokens), (), reason, 1, Usage())


def read(reading: AnswerParser, chunks: list[Chunk]) -> Delta:
    told = [reading.feed(each) for each in chunks]
    parts = [part for each in told for part in each.tool_calls]
    content, thoughts = "".join(each.content for each in told), "".join(each.reasoning for each in told)
    return Delta(content, joined(parts), told[-1].finish_reason, thoughts)


def chunks(made: Tokenizer, ids: list[int], rng: np.random.Generator, reason: str) -> list[Chunk]:
    """An answer cut anywhere, with texts as a server shows them."""
    found, shown, at = [], "", 0
    while at < len(ids):
        upto = min(len(ids), at + int(rng.integers(1, 5)))
        text = made.decode(ids[:upto], skip_special_tokens=True).rstrip("\ufffd")
        found.append(chunk(text[len(shown) :], ids[at:upto], reason if upto == len(ids) else ""))
        shown, at = text, upto
    return found


FORMS = [*((name, "none") for name in TEMPLATES), ("tags", "own")]
FORMS += [(name, "special") for name in ("tags", "list", "marks", "tagged list")]


@pytest.mark.parametrize(
    ("name", "marks", "parallel"),
    [
        *((*form, True) for form in FORMS),
        *(pytest.param(*form, False, marks=() if form == ("list", "special") else pytest.mark.slow) for form in FORMS),
    ],
)
def test_whatever_a_grammar_allows_is_read_as_calls_of_these_functions(name: str, marks: str, parallel: bool) -> None:
    made, known = tokenizer(marks)
    how, rng = form(name), np.random.default_rng(3)
    wanted = declared(*TOOLS, tool_choice="required", parallel_tool_calls=parallel)
    after, most = follower(forms.grammar(how, wanted, known), made), 0
    for _ in range(8):
        ids: list[int] = []
        while not ids or ids[-1] != END:
            ids.append(int(rng.choice(after(ids))))
            assert len(ids) < 2000
        said = read(ToolCallParser(how, known, wanted), chunks(made, ids, rng, "eos"))
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
            assert len(call["id"]) == (9 if name in ("list", "marks") else 29)
        assert len({call["id"] for call in said.tool_calls}) == len(said.tool_calls)
    assert most > 1 if parallel and name in MULTIPLE else most == 1


@pytest.mark.parametrize(("name", "marks"), [("tags", "none"), ("tags", "own"), ("list", "special"), ("alone", "none")])
def test_words_are_free_until_a_call_begins(name: str, marks: str) -> None:
    made, known = tokenizer(marks)
    how, rng = form(name), np.random.default_rng(4)
    wanted = declared(*TOOLS)
    after = follower(forms.grammar(how, wanted, known), made)
    call = f"{how.begin}{how.head}now{how.key}{{}}{how.tail}{how.end}"
    for words in ("", "No <tool {", 'It says {"name": "x"}, <tool_call or [TOOL_CALLS'):
        ids = made.encode(words, add_special_tokens=False).ids
        assert END in after(ids)
        said = read(ToolCallParser(how, known, wanted), chunks(made, [*ids, END], rng, "eos"))
        assert said == Delta(words, [], "eos")
        if not words or how.begin:
            ids += made.encode(call, add_special_tokens=False).ids
            assert END in after(ids)
            said = read(ToolCallParser(how, known, wanted), chunks(made, [*ids, END], rng, "eos"))
            assert (said.content, said.finish_reason) == (words, "tool_calls")
            assert [each["function"] for each in said.tool_calls] == [{"name": "now", "arguments": "{}"}]
    if marks == "own":  # spelt, and not the token
        parts = made.encode_batch(["<", "tool_call", ">", call.removeprefix(how.begin)])
        ids = [token for part in parts for token in part.ids]
        said = read(ToolCallParser(how, known, wanted), chunks(made, [*ids, END], rng, "eos"))
        assert said == Delta(call, [], "eos")
    begun = made.encode(f"Yes {how.begin}" if how.begin else how.head, add_special_tokens=False).ids
    assert END not in after(begun)
    assert not set(made.encode(" x").ids) & set(after(begun))
    if marks == "own":
        assert made.token_to_id("<think>") in after([])


def test_a_call_that_is_cut_off_is_told_as_far_as_it_came() -> None:

    def cut(*texts: str, **body: Any) -> Delta:
        reading = ToolCallParser(form("tags"), Marks({}, frozenset()), declared(*TOOLS, **body))
        return read(reading, [*(chunk(text, []) for text in texts[:-1]), chunk(texts[-1], [], "length")])

    said = cut('Hm. <tool_call>\n{"name": "weather", "argum', 'ents": {"place": "Ro')
    assert (said.content, said.finish_reason) == ("Hm. ", "length")
    assert [call["function"] for call in said.tool_calls] == [{"name": "weather", "arguments": '{"place": "Ro'}]
    whole = cut('<tool_call>\n{"name": "now", "arguments": {}', "", tool_choice="required")
    assert whole.finish_reason == "length"
    assert cut("a <tool_c") == Delta("a <tool_c", [], "length")
    begun = cut("<tool_call>", "\n", tool_choice="required")
    assert begun == Delta("", [], "length"), "no words, but a call's beginning"


def test_functions_get_the_arguments_that_they_declare_and_no_others() -> None:
    odd = {"type": "string", "pattern": "^(?=a).*$", "description": "Long."}
    anything = {"properties": {}, "additionalProperties": True}

    def with_title(*kinds: Any) -> dict[str, Any]:
        return {
            "properties": {"title": {"anyOf": [*kinds, {"$ref": "#/$defs/x"}]}, "open": anything},
            "$defs": {"x": {}},
        }

    schema = with_title({"properties": {"description": odd}})
    wanted = declared(function("f", parameters=schema))
    assert wanted.told[0]["function"]["parameters"] == schema, "what the model reads is whole"
    closed = with_title({"properties": {"description": {"type": "string"}}, "additionalProperties": False})
    closed["additionalProperties"] = False
    assert wanted.functions[0].schema == {"type": "object", **closed}
    for whole in ({"strict": True}, {"parameters": {**schema, "allOf": [{"properties": {"a": {}}}]}}):
        wanted = declared(function("f", **{"parameters": schema, **whole}))
        assert "additionalProperties" not in wanted.functions[0].schema


MAYBE, BEGUN = Thinking(), Thinking(begun=True)


@pytest.mark.parametrize("thinking", [MAYBE, BEGUN])
def test_thoughts_are_told_apart_wherever_chunks_end(thinking: Thinking) -> None:
    made, known = tokenizer("none")
    wanted = declared(*TOOLS)
    rng, begin = np.random.default_rng(6), "" if thinking.begun else "\n<think>"
    for _ in range(10):
        for answer in ("It is < 5.", ' <tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'):
            whole = f"{begin}\n Is <tool_call> </thin or </think\n</think>\n\n{answer}"
            parts = chunks(made, made.encode(whole, add_special_tokens=False).ids, rng, "eos")
            said = read(ReasoningParser(thinking, ToolCallParser(form("tags"), known, wanted)), parts)
            assert said.reasoning == "Is <tool_call> </thin or </think"
            assert (said.content, len(said.tool_calls)) == (("", 1) if "{" in answer else (answer, 0))
        parts = chunks(made, made.encode(f"{begin}Hm </th", add_special_tokens=False).ids, rng, "length")
        assert read(ReasoningParser(thinking, None), parts) == Delta("", [], "length", "Hm </th")
    if not thinking.begun:
        for words in ("\n<thinking hard", "Yes <think> no </think>", "<th"):
            parts = chunks(made, made.encode(words, add_special_tokens=False).ids, rng, "eos")
            assert read(ReasoningParser(thinking, None), parts) == Delta(words, [], "eos")


def test_a_prompt_says_whether_there_is_thinking() -> None:
    assert MAYBE.after("<|assistant|>\n") == MAYBE
    assert MAYBE.after("<|assistant|><think>\n") == BEGUN
    assert MAYBE.after("<|assistant|><think>\n\n</think>\n\n") is None
    assert thinking_of(["{{ '</think>' }}"]) == MAYBE
    assert thinking_of(["{{ messages }}"]) is None


@pytest.mark.parametrize("marks", ["none", "own"])
@pytest.mark.parametrize("thinking", [MAYBE, BEGUN, None])
def test_an_answer_behind_thoughts_fits_its_grammar_or_calls(marks: str, thinking: Thinking | None) -> None:
    made, known = tokenizer(marks)
    begin = "" if thinking is None else '<think>\nIt "is" {5}.\n</think>\n\n'
    begin = begin.removeprefix("<think>") if thinking is BEGUN else begin
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    free = declared(*TOOLS)
    held = declared(*TOOLS, tool_choice="required")

    def fits(rules: str, text: str) -> bool:
        return END in follower(rules, made)(made.encode(text, add_special_tokens=False).ids)

    for settings, good, wrong in (
        ({"grammar_json": '{"enum": ["start"]}'}, '"start"', "start"),
        ({"grammar_regex": "a/b\\n+"}, "a/b\n\n", "a/b"),
        ({"grammar_lark": 'start: "start" | other\nother: /start/ start'}, "startstart", "said"),
    ):
        answer = forms.answer_rules(settings)
        if thinking is not None:
            assert fits(forms.behind_thoughts(thinking, answer, known), begin + good)
            assert not fits(forms.behind_thoughts(thinking, answer, known), begin + wrong)
        rules = forms.grammar(form("tags"), free, known, thinking, answer)
        assert fits(rules, begin + good)
        assert fits(rules, begin + call)
        assert not fits(rules, begin + wrong)
        assert not fits(rules, begin + call + good)
    assert forms.answer_rules({"temperature": 1}) == ""
    assert fits(forms.grammar(form("tags"), free, known, thinking), f"{begin}Well. {call}{call}".replace("><", ">\n<"))
    assert fits(forms.grammar(form("tags"), free, known, thinking), f"{begin}Well.")
    assert fits(forms.grammar(form("tags"), held, known, thinking), begin + call)
    assert not fits(forms.grammar(form("tags"), held, known, thinking), f"{begin}Well.")


def test_strict_schemas_are_held_whole_or_refused() -> None:
    _, known = tokenizer("none")
    odd = {"type": "object", "properties": {"a": {"type": "string", "format": "never heard of"}}}
    for strict in (False, True):
        wanted = declared(function("f", parameters=odd, strict=strict), tool_choice="required")
        assert "strict" not in wanted.told[0]["function"]
        found = grammar.problem(
            grammar.of_lark(forms.grammar(form("tags"), wanted, known)), grammar.tokenizer_of(str(FOLDER), 4096, (END,))
        )
        assert ("format" in found) == strict


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "does not show tools"),
        ("{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}", "in an unknown form"),
        ("{{ tools }}{% if messages[1] %}{{ messages[1].tool_calls.a.b }}{% endif %}", "unknown form: .*template"),
    ],
)
def test_templates_without_calls_are_refused(source: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        forms.of_template(Template(source).render)


def test_who_may_be_called() -> None:
    for choice, names in ((NOW, ["now"]), ("required", ["weather", "now"])):
        wanted, rest = taken({"tools": TOOLS, "tool_choice": choice, "n": 2})
        assert wanted is not None
        assert [each.name for each in wanted.functions] == names
        assert (wanted.required, len(wanted.told), rest) == (True, 2, {"n": 2})
    for choice, several in ((None, "+-+"), ("required", "--+"), (NOW, "---")):
        for parallel, expected in zip((None, False, True), several):
            wanted = declared(*TOOLS, tool_choice=choice, parallel_tool_calls=parallel)
            assert wanted.parallel == (expected == "+"), (choice, parallel)
    for body in ({"tools": TOOLS, "tool_choice": "none"}, {"tools": []}, {"tool_choice": "auto"}, {}):
        assert taken(body) == (None, {})


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools: got 'custom'"),
        ({"tools": [NOW, NOW]}, "tools: got 'two functions of one name'"),
        ({"tools": [function("a b")]}, "tools: got 'a b'"),
        ({"tools": [function("a", parameters={"type": "array"})]}, "a: parameters"),
        ({"tools": TOOLS, "tool_choice": function("no")}, "tool_choice: got 'no'"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice: got 'any'"),
        ({"tool_choice": "required"}, "tool_choice: got 'required'"),
        ({"tools": TOOLS, "parallel_tool_calls": 1}, "parallel_tool_calls: got 1"),
        ({"tools": TOOLS, "tool_choice": "required", "grammar_json": "{}"}, "grammar_json: got '{}'"),
        ({"tools": TOOLS, "tool_choice": NOW, "structured_outputs": {"regex": "a"}}, "structured_outputs: got dict"),
    ],
)
def test_tools_that_are_none_are_refused(body: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        taken(body)


def test_messages_tell_templates_arguments_as_objects() -> None:
    call = {"id": "x", **function("now", arguments='{"a": 1}')}
    said = generation.checked_messages([{"role": "assistant", "content": None, "tool_calls": [call]}])
    assert said[0]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    for arguments in ("[1]", "{", 3):
        call["function"] = {"name": "now", "arguments": arguments}
        with pytest.raises(InvalidRequest, match="the text of a JSON object"):
            generation.checked_messages([{"role": "assistant", "tool_calls": [call]}])


def test_rules_with_texts_that_nothing_closes_are_read_once() -> None:
    assert forms.answer_rules({"grammar_lark": 'start: "a" // 5" wide\n  | start'}) == 'said: "a" // 5" wide\n  | said'
    for mark in '"/':
        rules = f"start: {mark}" + f"\\{mark}" * 300_000  # each mark may begin a text: hours
        assert forms.answer_rules({"grammar_lark": rules}) == rules.replace("start", "said")


def test_parameters_that_are_too_long_are_refused() -> None:
    whole = {f"p{place}": {"type": "string"} for place in range(5000)}
    with pytest.raises(InvalidRequest, match="without descriptions"):
        declared(function("f", parameters={"type": "object", "properties": whole}))
    described = {"p": {"type": "string", "description": "x" * 200_000}}
    declared(function("f", parameters={"type": "object", "properties": described}))
