"""Tool arguments that a model writes one by one between tags, each as a text, instead of one JSON object. For example

    <parameter=place>
    Rome
    </parameter>

Strings stand there as they are, everything else as JSON. A schema says which of the two a value is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
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
    """Return the rule for this function's arguments in a grammar (`grammar_lark`) that has a rule `text`. Rules for
    single values are collected in `values`, as functions share them. `how` says how JSON is written."""
    parts, required, leaves, size = [], _required(function), Leaves(function), sum(map(len, values))
    for key, schema in _properties(function).items():
        own = _value(leaves, schema, pairs, marks, how)
        if own != "text":
            size += 0 if own in values else len(own)
            _bound(function, size)
            own = values.setdefault(own, f"value_{len(values)}")
        own = f"{marks.terms(pairs.begin + key + pairs.key)} {own}"
        parts.append(own if key in required else f"({own})?")
    if parts or function.schema.get("additionalProperties") is False:
        return " ".join(parts) or quoted("")
    return f"({marks.terms(pairs.begin)} /[^<>\"'=\\n]+/ {marks.terms(pairs.key)} text)*"


def text(pairs: Pairs, marks: Marks) -> str:
    """Return the rule `text`: a value as it is, and what ends it."""
    parts = marks.parts(pairs.end)
    first = next((place for place, part in enumerate(parts) if part in marks.ids), None)
    if first is None:
        return f"text[lazy]: ANYTHING {quoted(pairs.end)}\n{ANYTHING}"
    before = "".join(parts[:first])
    if before:
        return f"text: VALUE {marks.terms(pairs.end.removeprefix(before))}\nVALUE: /(.|\\n)*/ {quoted(before)}"
    return f"text: VALUE? {marks.terms(pairs.end)}\nVALUE: /(.|\\n)+/"


def kinds(function: Function) -> dict[str, str]:
    """Return, for each argument, whether its value is a text, JSON, or either."""
    leaves = Leaves(function)
    return {key: _kind(leaves, schema) for key, schema in _properties(function).items()}


def decided(value: str) -> str:
    """Return the JSON of a value that may be a text or JSON."""
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


def _kind(leaves: Leaves, schema: Any) -> str:
    texts = [_is_text(leaf) for leaf in leaves.of(schema)]
    if all(each is True for each in texts):
        return TEXT
    return JSON if all(each is False for each in texts) else EITHER


def _is_text(leaf: Mapping[str, Any]) -> bool | None:
    """Return whether the value is a text; None where it may be one."""
    fixed = leaf.get("enum", [leaf["const"]] if "const" in leaf else None)
    if isinstance(fixed, list):
        texts = [isinstance(each, str) for each in fixed]
        return True if all(texts) else (None if any(texts) else False)
    return None if leaf.get("type") is None else leaf["type"] == "string"


def _bound(function: Function, size: int) -> None:
    """Refuse rules that are too long: each value repeats all definitions of a schema."""
    if size > MAX_GRAMMAR_BYTES:
        allowed = f"parameters that {MAX_GRAMMAR_BYTES} bytes of rules can hold"
        raise InvalidRequest(f"tools: {function.name}: allowed: {allowed}", "tools")


class Leaves:
    """The alternatives of each schema in one function's parameters, with references and choices resolved. A reference
    is resolved once: some kilobytes of properties may all lead to the same hundreds of alternatives."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self._referred: dict[tuple[str, int], list[dict[str, Any]]] = {}

    def of(self, schema: Any) -> list[dict[str, Any]]:
        found = self._first(schema, 0)
        return found if len(found) <= MOST_KINDS else [{}]

    def _first(self, schema: Any, depth: int) -> list[dict[str, Any]]:
        return list(islice(self._each(schema, depth), MOST_KINDS + 1))

    def _each(self, schema: Any, depth: int) -> Iterator[dict[str, Any]]:
        if not isinstance(schema, dict) or depth > DEEPEST:
            yield {}
            return
        reference = schema.get("$ref")
        if isinstance(reference, str):
            if (reference, depth) not in self._referred:
                self._referred[reference, depth] = self._first(self._resolved(reference), depth + 1)
            yield from self._referred[reference, depth]
            return
        choices = schema.get("anyOf", schema.get("oneOf"))
        if isinstance(choices, list) and choices:
            for each in choices:
                yield from self._each(each, depth + 1)
        elif isinstance(schema.get("type"), list) and schema["type"] and "enum" not in schema:
            for kind in schema["type"]:
                yield {**schema, "type": kind}
        elif isinstance(schema.get("allOf"), list) and len(schema["allOf"]) == 1:
            yield from self._each(schema["allOf"][0], depth + 1)
        else:
            yield schema

    def _resolved(self, reference: str) -> Any:
        found: Any = self.function.schema if reference.startswith("#") and len(reference) <= LONGEST else {}
        for part in reference.removeprefix("#").split("/")[1:]:
            found = found.get(part.replace("~1", "/").replace("~0", "~"), {}) if isinstance(found, dict) else {}
        return found


def _value(leaves: Leaves, schema: Any, pairs: Pairs, marks: Marks, how: Mapping[str, Any]) -> str:
    """Return the rule for one value and its end."""
    function = leaves.function
    ways, root = [], {key: function.schema[key] for key in ("$defs", "definitions") if key in function.schema}
    for leaf in leaves.of(schema):
        fixed = leaf.get("enum", [leaf["const"]] if "const" in leaf else None)
        if isinstance(fixed, list) and fixed:
            ways += [marks.terms(each if isinstance(each, str) else json.dumps(each)) for each in fixed if each != ""]
        elif _is_text(leaf) is False:
            ways.append(f"%json {json.dumps({'x-guidance': how, **root, **leaf})}")
        else:
            if function.strict and (held := [key for key in NOT_HELD if key in leaf]):
                raise InvalidRequest(f"tools: {function.name}: {held[0]} of a text cannot be held strictly", "tools")
            return "text"
        _bound(function, sum(map(len, ways)))
    return f"({' | '.join(ways)}) {marks.terms(pairs.end)}"
