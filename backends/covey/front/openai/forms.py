"""Learns how a model writes tool calls from what its chat template shows of them, and makes the grammar that holds an
answer to that form.

A template is shown conversations with words, with one call and with two, and what differs is the form. For example, of

    <tool_call>
    {"name": "f", "arguments": {"a": 1}}
    </tool_call>

`begin` is the first line, `head` all up to f, `key` what is between f and the arguments, and `tail` all after them.
Some of a form's marks are tokens of their own, of which a text shows nothing where they are special ones. transformers
knows the form of an answer only where the model's own files say it (`response_template`).
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
# As models are taught to write JSON.
SPACED = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
NO_TOOLS = "this model's chat template shows its model no tools"
KNOWN = "arguments as JSON are, behind a tag or a bracket"
UNKNOWN = "this model's chat template writes calls in no form that is known here: {}"
LIST = "[TOOL_CALLS]"  # of models whose calls have short ids
_ID = re.compile(rf'(, )?"id": "({"|".join(IDS.values())})"|\[CALL_ID\]({"|".join(IDS.values())})')
_BEGIN = re.compile(r"<[^<>\s]+>|\[[A-Z_]+\]|<.*", re.DOTALL)
_PART_OF_A_TAG = re.compile(r"[<\[][^<>\[\]]*$")
# A text or a pattern that nothing closes goes as far as it can: looked for again behind each of its marks, a long one
# would take hours.
_START = re.compile(r'"(?:\\.|[^"\\\n])*"?|/(?:\\.|[^/\\\n])*/?|\bstart\b')


@dataclass(frozen=True)
class Form:
    """A way to write calls of tools."""

    begin: str  # "" where an answer that begins with `head` is one of calls
    head: str
    key: str
    tail: str
    again: str  # from one call's `tail` to the next one's name; "" where there is only one
    end: str  # after the last call
    short_ids: bool = False  # of nine characters, and no others


def of_template(render: Callable[..., str]) -> Form:
    """Return the form that a template shows. `render` takes messages and settings. Raises InvalidRequest if it is
    none that is known."""
    if PROBE not in render([QUESTION], tools=[TOOL]):
        raise InvalidRequest(NO_TOOLS)
    try:
        words, one = _shown(render, {"content": WORDS}), _shown(render, _calls(PROBE))
    except InvalidRequest as error:
        raise InvalidRequest(UNKNOWN.format(error)) from None
    try:
        two = _shown(render, _calls(PROBE, OTHER))
    except InvalidRequest:
        two = ""  # this one has single calls alone
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
    """Return the form by three conversations that differ in their answers."""
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
    """Return the common beginning of two texts, without the half of a tag."""
    same = next((at for at, pair in enumerate(zip(one, other)) if pair[0] != pair[1]), min(len(one), len(other)))
    return _PART_OF_A_TAG.sub("", one[:same])


def answer_rules(settings: Mapping[str, Any]) -> str:
    """Return rules by which `said` fits the grammar of these settings; "" where they have none."""
    if "grammar_json" in settings:
        try:
            schema = json.loads(settings["grammar_json"])
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidRequest(f"grammar_json: got no JSON: {error}", "grammar_json") from None
        return f"said: %json {json.dumps(schema)}"
    if "grammar_regex" in settings:
        pattern = re.sub(r"(\\.)|/", lambda found: found[1] or r"\/", str(settings["grammar_regex"]), flags=re.DOTALL)
        return "said: SAID\nSAID: /" + pattern.replace("\n", "\\n") + "/"
    rules = str(settings.get("grammar_lark", ""))
    return _START.sub(lambda found: "said" if found[0] == "start" else found[0], rules)


def behind_thoughts(thinking: Thinking, answer: str, marks: Marks) -> str:
    """Return the rules for an answer that may begin with thoughts and then fits `said`."""
    lead, thoughts = thinking.rules(marks)
    return f"start: {lead}said\n{thoughts}\n{answer}"


def grammar(form: Form, tools: Tools, marks: Marks, thinking: Thinking | None = None, answer: str = "") -> str:
    """Return the rules (`grammar_lark`) that hold an answer to these tools. Words without a call fit the rules of
    `said` in `answer`, if that is given."""
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
