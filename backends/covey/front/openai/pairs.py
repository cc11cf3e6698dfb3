"""Arguments that a model writes one by one between tags, each as a text, and not as one JSON object. For example

    <parameter=place>
    Rome
    </parameter>

Texts stand there as they are, everything else as JSON. A schema says which of the two a value is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from covey.front.openai.marks import Marks, quoted
from covey.front.openai.tools import Function
from covey_client.errors import InvalidRequest
from covey_client.wire import MAX_GRAMMAR_BYTES

DEEPEST = 16  # references that lead to references
MOST_KINDS = 64  # of one value; where references to references make more of them, none is known
LONGEST = 1000  # characters of a reference
TEXT, JSON, EITHER = "text", "JSON", "either"
NOT_HELD = ("pattern", "format", "minLength", "maxLength")  # of texts
ANYTHING = "ANYTHING: /(.|\\n)*/"


@dataclass(frozen=True)
class Pairs:
    """The marks around each argument's name and value."""

    begin: str
    key: str
    end: str


def rule(function: Function, pairs: Pairs, marks: Marks, how: Mapping[str, Any], values: dict[str, str]) -> str:
    """What holds the arguments of this function in a grammar (`grammar_lark`) that knows a rule `text`. What holds one
    value is a rule in `values`, by its text: many functions have the same ones. `how` says how JSON is written."""
    parts, required = [], _required(function)
    for key, schema in _properties(function).items():
        own = _value(function, schema, pairs, marks, how)
        if own != "text":
            own = values.setdefault(own, f"value_{len(values)}")
            _bound(function, values)
        own = f"{marks.terms(pairs.begin + key + pairs.key)} {own}"
        parts.append(own if key in required else f"({own})?")
    if parts or function.schema.get("additionalProperties") is False:
        return " ".join(parts) or quoted("")
    return f"({marks.terms(pairs.begin)} /[^<>\"'=\\n]+/ {marks.terms(pairs.key)} text)*"


def text(pairs: Pairs, marks: Marks) -> str:
    """The rule `text`: a value as it is, and what ends it."""
    parts = marks.parts(pairs.end)
    first = next((place for place, part in enumerate(parts) if part in marks.ids), None)
    if first is None:
        return f"text[lazy]: ANYTHING {quoted(pairs.end)}\n{ANYTHING}"
    before = "".join(parts[:first])
    if before:
        return f"text: VALUE {marks.terms(pairs.end.removeprefix(before))}\nVALUE: /(.|\\n)*/ {quoted(before)}"
    return f"text: VALUE? {marks.terms(pairs.end)}\nVALUE: /(.|\\n)+/"


def kinds(function: Function) -> dict[str, str]:
    """Of each argument, whether its value is a text, JSON, or either."""
    return {key: _kind(function, schema) for key, schema in _properties(function).items()}


def decided(value: str) -> str:
    """JSON of a value that is a text or JSON."""
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        found = value
    return json.dumps(value, ensure_ascii=False) if isinstance(found, str) else value


def _properties(function: Function) -> dict[str, Any]:
    found = function.schema.get("properties")
    return found if isinstance(found, dict) else {}


def _required(function: Function) -> frozenset[str]:
    found = function.schema.get("required")
    return frozenset(each for each in found if isinstance(each, str)) if isinstance(found, list) else frozenset()


def _kind(function: Function, schema: Any) -> str:
    texts = [_is_text(leaf) for leaf in _leaves(function, schema)]
    if all(each is True for each in texts):
        return TEXT
    return JSON if all(each is False for each in texts) else EITHER


def _is_text(leaf: Mapping[str, Any]) -> bool | None:
    """None where it may be one."""
    fixed = leaf.get("enum", [leaf["const"]] if "const" in leaf else None)
    if isinstance(fixed, list):
        texts = [isinstance(each, str) for each in fixed]
        return True if all(texts) else (None if any(texts) else False)
    return None if leaf.get("type") is None else leaf["type"] == "string"


def _bound(function: Function, rules: Iterable[str]) -> None:
    """Each value repeats the definitions of all: a schema of some kilobytes would make gigabytes."""
    if sum(map(len, rules)) > MAX_GRAMMAR_BYTES:
        allowed = f"parameters that {MAX_GRAMMAR_BYTES} bytes of rules can hold"
        raise InvalidRequest(f"tools: {function.name}: allowed: {allowed}", "tools")


def _leaves(function: Function, schema: Any) -> list[dict[str, Any]]:
    """The schemas that a value fits one of, without references and choices."""
    found = list(islice(_each(function, schema), MOST_KINDS + 1))
    return found if len(found) <= MOST_KINDS else [{}]


def _each(function: Function, schema: Any, depth: int = 0) -> Iterator[dict[str, Any]]:
    if not isinstance(schema, dict) or depth > DEEPEST:
        yield {}
        return
    reference = schema.get("$ref")
    if isinstance(reference, str):
        yield from _each(function, _resolved(function, reference), depth + 1)
        return
    choices = schema.get("anyOf", schema.get("oneOf"))
    if isinstance(choices, list) and choices:
        for each in choices:
            yield from _each(function, each, depth + 1)
    elif isinstance(schema.get("type"), list) and schema["type"] and "enum" not in schema:
        for kind in schema["type"]:
            yield {**schema, "type": kind}
    elif isinstance(schema.get("allOf"), list) and len(schema["allOf"]) == 1:
        yield from _each(function, schema["allOf"][0], depth + 1)
    else:
        yield schema


def _resolved(function: Function, reference: str) -> Any:
    found: Any = function.schema if reference.startswith("#") and len(reference) <= LONGEST else {}
    for part in reference.removeprefix("#").split("/")[1:]:
        found = found.get(part.replace("~1", "/").replace("~0", "~"), {}) if isinstance(found, dict) else {}
    return found


def _value(function: Function, schema: Any, pairs: Pairs, marks: Marks, how: Mapping[str, Any]) -> str:
    """What holds one value and its end."""
    ways, root = [], {key: function.schema[key] for key in ("$defs", "definitions") if key in function.schema}
    for leaf in _leaves(function, schema):
        fixed = leaf.get("enum", [leaf["const"]] if "const" in leaf else None)
        if isinstance(fixed, list) and fixed:
            ways += [marks.terms(each if isinstance(each, str) else json.dumps(each)) for each in fixed if each != ""]
        elif _is_text(leaf) is False:
            ways.append(f"%json {json.dumps({'x-guidance': how, **root, **leaf})}")
        else:
            if function.strict and (held := [key for key in NOT_HELD if key in leaf]):
                raise InvalidRequest(f"tools: {function.name}: {held[0]} of a text cannot be held strictly", "tools")
            return "text"
        _bound(function, ways)
    return f"({' | '.join(ways)}) {marks.terms(pairs.end)}"
