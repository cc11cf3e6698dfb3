"""Learns from a chat template how the model writes tool calls, and makes a grammar that holds answers to that form.

The template renders conversations with words, with one call and with two. Their differences show the form. For example:

    <tool_call>
    {"name": "f", "arguments": {"a": 1}}
    </tool_call>

Here `begin` is the first line, `head` is everything up to f, `key` the part between f and the arguments, and `tail`
everything after them. Some marks are single tokens, which are invisible in a text if they are special. transformers
knows the form of an answer only if the model's own files declare it (`response_template`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from covey.front.openai.marks import Marks, quoted
from covey.front.openai.thinking import Thinking
from covey.front.openai.tools import Function, Tools
from covey_client.errors import InvalidRequest

PROBE, OTHER, WORDS = "covey_probe", "covey_other", "\u2603 covey_words"
IDS = {PROBE: "a1b2c3d4e", OTHER: "b1b2c3d4e"}
SECRET = {"place": "here", "day": "soon"}
WRITTEN = json.dumps(SECRET)
PROPERTIES = {key: {"type": "string", "description": f"The {key}."} for key in SECRET}
PARAMETERS = {"type": "object", "properties": PROPERTIES, "required": list(SECRET)}
TOOL = {"type": "function", "function": {"name": PROBE, "description": "Looks.", "parameters": PARAMETERS}}
QUESTION = {"role": "user", "content": "Who is there?"}
# The way in which models are taught to write JSON.
SPACED = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
NO_TOOLS = "this model's chat template does not show tools to the model"
KNOWN = "JSON arguments after a tag or a bracket"
UNKNOWN = "this model's chat template writes calls in an unknown form: {}"
LIST = "[TOOL_CALLS]"  # of models whose calls have short ids
_ID = re.compile(rf'(, )?"id": "({"|".join(IDS.values())})"|\[CALL_ID\]({"|".join(IDS.values())})')
_BEGIN = re.compile(r"<[^<>\s]+>|\[[A-Z_]+\]|<.*", re.DOTALL)
_PART_OF_A_TAG = re.compile(r"[<\[][^<>\[\]]*$")
# An unclosed text or pattern runs to the end: searching again after each of its marks would take hours for a long one.
_START = re.compile(r'"(?:\\.|[^"\\\n])*"?|/(?:\\.|[^/\\\n])*/?|\bstart\b')


@dataclass(frozen=True)
class Form:
    """A way to write tool calls."""

    begin: str  # "" if an answer with calls begins with `head`
    head: str
    key: str
    tail: str
    again: str  # between one call's `tail` and the next one's name; "" if only one call is possible
    end: str  # after the last call
    short_ids: bool = False  # ids of exactly nine characters


def of_template(render: Callable[..., str]) -> Form:
    """Return the form in a template. `render` takes messages and settings. Raises InvalidRequest for an unknown
    form."""
    if PROBE not in render([QUESTION], tools=[TOOL]):
        raise InvalidRequest(NO_TOOLS)
    try:
        words, one = _shown(render, {"content": WORDS}), _shown(render, _calls(PROBE))
    except InvalidRequest as error:
        raise InvalidRequest(UNKNOWN.format(error)) from None
    try:
        two = _shown(render, _calls(PROBE, OTHER))
    except InvalidRequest:
        two = ""  # this template allows only single calls
    if WORDS in words and (found := _form(words, one, two)):
        return found
    raise InvalidRequest(UNKNOWN.format(KNOWN))


def _shown(render: Callable[..., str], answer: Mapping[str, Any]) -> str:
    shown = render([QUESTION, {"role": "assistant", **answer}], tools=[TOOL], add_generation_prompt=False)
    return _ID.sub("", shown)


def _calls(*names: str) -> dict[str, Any]:
    calls = [{"id": IDS[name], "type": "function", "function": {"name": name, "arguments": SECRET}} for name in names]
    return {"content": "", "tool_calls": calls}


def _form(words: str, one: str, two: str) -> Form | None:
    """Return the form in three conversations that differ only in their answers."""
    closing = words.partition(WORDS)[2].strip()

    def answer(shown: str) -> str:
        body = shown[len(_common(words, shown)) :]
        return (body.partition(closing)[0] if closing else body).strip()

    opening, called, rest = answer(one).partition(PROBE)
    begin = _BEGIN.match(opening)
    if not called or not (begin or opening.startswith(("{", "["))):
        return None
    key, written, tail = rest.partition(WRITTEN)
    if not written:
        return None
    again, end = "", ""
    between, called, rest = answer(two).partition(PROBE)[2].partition(OTHER)
    if called and WRITTEN in between and WRITTEN in rest:
        first, second = between.partition(WRITTEN)[2], rest.partition(WRITTEN)[2]
        tail = _common(first, second).rstrip()
        again, end = first[len(tail) :], second[len(tail) :]
    first_mark = begin[0] if begin else ""
    return Form(first_mark, opening[len(first_mark) :], key, tail, again, end, short_ids=first_mark == LIST)


def _common(one: str, other: str) -> str:
    """Return the common beginning of two texts, without a partial tag."""
    same = next((at for at, pair in enumerate(zip(one, other)) if pair[0] != pair[1]), min(len(one), len(other)))
    return _PART_OF_A_TAG.sub("", one[:same])


def answer_rules(settings: Mapping[str, Any]) -> str:
    """Return rules that make `said` match the grammar in these settings; "" if there is none."""
    if "grammar_json" in settings:
        try:
            schema = json.loads(settings["grammar_json"])
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidRequest(f"grammar_json: not JSON: {error}", "grammar_json") from None
        return f"said: %json {json.dumps(schema)}"
    if "grammar_regex" in settings:
        pattern = re.sub(r"(\\.)|/", lambda found: found[1] or r"\/", str(settings["grammar_regex"]), flags=re.DOTALL)
        return "said: SAID\nSAID: /" + pattern.replace("\n", "\\n") + "/"
    rules = str(settings.get("grammar_lark", ""))
    return _START.sub(lambda found: "said" if found[0] == "start" else found[0], rules)


def behind_thoughts(thinking: Thinking, answer: str, marks: Marks) -> str:
    """Return the rules for an answer that may begin with thoughts and then matches `said`."""
    lead, thoughts = thinking.rules(marks)
    return f"start: {lead}said\n{thoughts}\n{answer}"


def grammar(form: Form, tools: Tools, marks: Marks, thinking: Thinking | None = None, answer: str = "") -> str:
    """Return the rules (`grammar_lark`) that hold an answer to these tools. Words without a call must match `said` in
    `answer`, if that is given."""
    lead, thoughts = thinking.rules(marks) if thinking else ("", "")
    calls = [f"call_{number}" for number in range(len(tools.functions))]
    again = f" ({marks.terms(form.again)} one)*" if form.again and tools.parallel else ""
    rules = [
        f"calls: {marks.terms(form.head)} one{again} {marks.terms(form.end)}",
        f"one: {' | '.join(calls)}",
        *(f"{name}: {_call(form, each, marks)}" for name, each in zip(calls, tools.functions)),
        *([thoughts] if thoughts else []),
    ]
    if tools.required:
        return "\n".join([f"start: {lead}{marks.terms(form.begin)} calls", *rules])
    if answer:
        return "\n".join([f"start: {lead}said | {lead}{marks.terms(form.begin)} calls", *rules, answer])
    free = [f"words: {marks.free('WORDS', form.begin)}", r"WORDS: /(.|\n)+/"]
    if not form.begin:
        begins = f"start: {lead}WORDS? | {lead}calls", rf"WORDS: /[^\{form.head[0]}](.|\n)*/"
        return "\n".join([*begins, *rules])
    if form.begin in marks.ids:
        return "\n".join([f"start: {lead}words | {lead}words <[{marks.ids[form.begin]}]> calls", *rules, *free])
    begun = [f"begun[lazy]: BEFORE {quoted(form.begin)}", r"BEFORE: /(.|\n)*/"]
    return "\n".join([f"start: {lead}words | {lead}words begun calls", *begun, *rules, *free])


def _call(form: Form, function: Function, marks: Marks) -> str:
    how = {**SPACED, "lenient": not function.strict}
    inside = f"%json {json.dumps({'x-guidance': how, **function.schema})}"
    return f"{marks.terms(function.name + form.key)} {inside} {marks.terms(form.tail)}"
