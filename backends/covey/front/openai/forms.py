"""How a model writes the calls of functions: what its chat template shows of them, and the grammar that holds an answer
to it.

A template is shown a conversation with one call, and the form is that in which it writes the call. For example, of

    <tool_call>
    {"name": "f", "arguments": {"a": 1}}
    </tool_call>

`begin` is the first line, `head` all up to f, `key` what is between f and the arguments, and `tail` all after them.
Some of a form's marks are tokens of their own, of which a text shows nothing where they are special ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from covey.front.openai.tools import Function, Tools
from covey_client.errors import InvalidRequest

PROBE, ID, SECRET = "covey_probe", "a1b2c3d4e", {"place": "here"}
TOOL = {
    "type": "function",
    "function": {
        "name": PROBE,
        "description": "Looks.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}
QUESTION = {"role": "user", "content": "Who is there?"}
CALL = {"id": ID, "type": "function", "function": {"name": PROBE, "arguments": SECRET}}
ANSWER = {"role": "assistant", "content": "", "tool_calls": [CALL]}
# As models are taught to write JSON.
SPACED = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
NO_TOOLS = "this model's chat template shows its model no tools"
UNKNOWN = "this model's chat template writes calls in no form that is known here: {}"


@dataclass(frozen=True)
class Form:
    """One way to write calls."""

    name: str
    begin: str  # "" where an answer that begins with `head` is one of calls
    head: str
    key: str
    tail: str
    again: str  # from one call's `tail` to the next one's name; "" where there is only one
    end: str  # after the last call
    short_ids: bool = False  # of nine characters, and no others


@dataclass(frozen=True)
class Marks:
    """The tokens of a tokenizer that stand for a text of their own."""

    ids: Mapping[str, int]
    hidden: frozenset[str]  # those which are left out of texts

    def visible(self, text: str) -> str:
        """What an answer's text shows of this."""
        return "".join(part for part in self.parts(text) if part not in self.hidden)

    def parts(self, text: str) -> list[str]:
        """The text cut into marks and what is between them."""
        found = [re.escape(mark) for mark in sorted(self.ids, key=len, reverse=True) if mark in text]
        return [part for part in re.split(f"({'|'.join(found)})", text) if part] if found else [text] * bool(text)


_CALL = rf'\{{"name": "{PROBE}", "(arguments|parameters)": \{{"place": "here"\}}'
_BETWEEN_TAGS = re.compile(rf"<tool_call>(\s*){_CALL}\}}(\s*)</tool_call>")
_IN_A_LIST = re.compile(rf'\[TOOL_CALLS\](\s*)\[{_CALL}(?:, "id": "{ID}")?\}}\]')
_ALONE = re.compile(rf"{_CALL}\}}")


def of_template(render: Callable[..., str]) -> Form:
    """The form that a template shows. `render` takes messages and settings. Raises InvalidRequest where it is none."""
    if PROBE not in render([QUESTION], tools=[TOOL]):
        raise InvalidRequest(NO_TOOLS)
    try:
        shown = render([QUESTION, ANSWER], tools=[TOOL], add_generation_prompt=False)
    except InvalidRequest as error:
        raise InvalidRequest(UNKNOWN.format(error)) from None
    if found := _BETWEEN_TAGS.search(shown):
        before, key, after = found.groups()
        head, tail = f'{before}{{"name": "', f"}}{after}</tool_call>"
        return Form("tags", "<tool_call>", head, f'", "{key}": ', tail, f"\n<tool_call>{head}", "")
    if found := _IN_A_LIST.search(shown):
        before, key = found.groups()
        head = f'{before}[{{"name": "'
        return Form("list", "[TOOL_CALLS]", head, f'", "{key}": ', "}", ', {"name": "', "]", short_ids=True)
    if found := _ALONE.search(shown):
        return Form("alone", "", '{"name": "', f'", "{found[1]}": ', "}", "", "")
    raise InvalidRequest(UNKNOWN.format("<tool_call>, [TOOL_CALLS] and a JSON object alone are"))


def grammar(form: Form, tools: Tools, marks: Marks) -> str:
    """The rules (`grammar_lark`) that hold an answer to these tools."""
    calls = [f"call_{number}" for number in range(len(tools.functions))]
    again = f" ({_terms(form.again, marks)} one)*" if form.again and tools.parallel else ""
    rules = [
        f"calls: {_terms(form.head, marks)} one{again} {_terms(form.end, marks)}",
        f"one: {' | '.join(calls)}",
        *(f"{rule}: {_call(form, each, marks)}" for rule, each in zip(calls, tools.functions)),
    ]
    if tools.required:
        return "\n".join([f"start: {_terms(form.begin, marks)} calls", *rules])
    others = _ranges(number for mark, number in marks.ids.items() if mark != form.begin)
    rules += [f"words: (WORDS{others and f' | <[{others}]>'})*", r"WORDS: /(.|\n)+/"]
    if not form.begin:
        begins = r"start: WORDS? | calls", r"WORDS: /[^{](.|\n)*/"
        return "\n".join([*begins, *rules[:-2]])
    if form.begin in marks.ids:
        return "\n".join([f"start: words | words <[{marks.ids[form.begin]}]> calls", *rules])
    begun = f"begun[lazy]: ANYTHING {_quoted(form.begin)}"
    return "\n".join(["start: words | words begun calls", begun, r"ANYTHING: /(.|\n)*/", *rules])


def _call(form: Form, function: Function, marks: Marks) -> str:
    how = {**SPACED, "lenient": not function.strict}
    schema = {"x-guidance": how, **function.schema}
    key, tail = _terms(function.name + form.key, marks), _terms(form.tail, marks)
    return f"{key} %json {json.dumps(schema)} {tail}"


def _terms(text: str, marks: Marks) -> str:
    parts = marks.parts(text)
    return " ".join(f"<[{marks.ids[part]}]>" if part in marks.ids else _quoted(part) for part in parts)


def _quoted(text: str) -> str:
    return json.dumps(text)


def _ranges(ids: Iterable[int]) -> str:
    """`1-3,7` for 1, 2, 3 and 7."""
    found: list[list[int]] = []
    for number in sorted(ids):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(f"{low}-{high}" if high > low else str(low) for low, high in found)
