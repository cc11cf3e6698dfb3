"""Limits of grammars that are checked before compilation, since llguidance's own (`covey.text.grammar.LIMITS`) do not
count these costs. A refusal depends only on the grammar's text.

Three things cost more than llguidance charges for them. A run of optional parts, such as `a?a?a?`, is quadratic in one
step. A text that must match several patterns at once is exponential. Multiples of large numbers need a state for each
remainder. A count may be too high, never too low.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

CHOICES = 500  # in one regular expression or rule, including the terminals that it names
PATTERNS = 4  # patterns, formats and enumerations that one text must match
NAMES = 8  # patternProperties of one object
LEAST, MOST = -(1 << 63), (1 << 63) - 1  # of integers that a bound may require
MULTIPLES = 1 << 14  # least common multiple of all multipleOf values, and their sum, without trailing zeros

_CHOICE = re.compile(r"[?*+{|~&%\[]")
_IN_PATTERN = re.compile(r"[?*+{\[]|\|(?=[|)(^$\\\s#]|$)|(?<=[(|:])\||^\|")  # an alternative of letters is not optional
_RULE = re.compile(r"^[ \t]*[?!]?(\w+)\b[^\n:\"/]*:", re.MULTILINE)  # without \b the engine backtracks over long names
_NAME = re.compile(r"\w+")
_SEVERAL = ("allOf", "anyOf", "oneOf")
_ONE_OF = ("anyOf", "oneOf")
_NAMED = ("properties", "patternProperties")
_INSIDE = ("items", "additionalProperties", "contains", "not", "if", "then", "else", "unevaluatedItems")
_OWN = ("pattern", "format", "enum")


def too_much(name: str, text: str) -> str:
    """Return what is allowed instead of this `grammar_json`, `grammar_regex` or `grammar_lark`; "" if it is not known
    to be too large."""
    if name == "grammar_regex":
        return _too_many_choices(len(_IN_PATTERN.findall(text)))
    try:
        return _in_schema(text) if name == "grammar_json" else _in_rules(text)
    except RecursionError:
        return "a schema that is nested less deeply"


def _too_many_choices(count: int) -> str:
    if count <= CHOICES:
        return ""
    return f"at most {CHOICES} of ? * + {{ [ | in one pattern or rule, with those of the terminals it names: {count}"


def _count(text: str) -> int:
    return len(_CHOICE.findall(text))


# ---- rules ----------------------------------------------------------------------------------------------------------


def _in_rules(text: str) -> str:
    schemas, rest = _apart(text)
    for schema in schemas:
        if found := _of_schema(schema):
            return found
    parts = _RULE.split(rest)
    bodies = dict[str, str]()
    for rule, body in zip(parts[1::2], parts[2::2]):
        bodies[rule] = bodies.get(rule, "") + body
    if "[" not in rest:  # without attributes, alternatives of rules are not part of an expression
        bodies = {name: body if _is_terminal(name) else body.replace("|", "") for name, body in bodies.items()}
    return _too_many_choices(max(_count(parts[0]), *_totals(bodies).values(), 0))


def _apart(text: str) -> tuple[list[Any], str]:
    """Return the schemas within rules, and the rules without them."""
    decoder, found, rest, at = json.JSONDecoder(parse_float=_decimal, parse_int=_decimal), list[Any](), "", 0
    for mark in re.finditer(r"%json\s*", text):
        if mark.start() < at:
            continue
        try:
            schema, end = decoder.raw_decode(text, mark.end())
        except (ValueError, RecursionError):  # the compiler refuses it as well
            continue
        if not isinstance(schema, dict):  # a list or a string may be part of a regular expression, an object cannot
            continue
        found.append(schema)
        rest, at = rest + text[at : mark.end()], end
    return found, rest + text[at:]


def _totals(bodies: Mapping[str, str]) -> dict[str, int]:
    """Return the choices of each rule, including the terminals that it names, once for each mention. They become one
    expression, and short rules can double it repeatedly."""
    totals, waiting = dict[str, int](), [(name, False) for name in bodies]
    terminals = set(filter(_is_terminal, bodies))
    named = {name: [each for each in _NAME.findall(body) if each in terminals] for name, body in bodies.items()}
    while waiting:
        name, ready = waiting.pop()
        if name in totals and totals[name] >= 0:
            continue
        if ready:
            totals[name] = _count(bodies[name]) + sum(max(0, totals[each]) for each in named[name])
        elif name not in totals:  # the compiler refuses terminals that name each other
            totals[name] = -1
            waiting.append((name, True))
            waiting += [(each, False) for each in named[name] if each not in totals]
    return totals


def _is_terminal(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()


# ---- schemas --------------------------------------------------------------------------------------------------------


def _in_schema(text: str) -> str:
    try:
        schema = json.loads(text, parse_float=_decimal, parse_int=_decimal)
    except ValueError:
        return ""  # the compiler reports the error
    return _of_schema(schema)


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:  # its exponent has too many digits
        return Decimal("Infinity")


def _of_schema(schema: Any) -> str:
    if any(map(_beyond, _objects(schema))):
        return f"integers from {LEAST} to {MOST}"
    multiples = set[Decimal]()
    for key, value in _pairs(schema):
        if key == "multipleOf" and isinstance(value, Decimal):
            multiples.add(value.copy_abs())  # abs() would round, or overflow
        if key in ("pattern", "whitespace_pattern") and isinstance(value, str):
            value = {value: None}
        elif key != "patternProperties" or not isinstance(value, dict):
            continue
        if len(value) > NAMES:
            return f"at most {NAMES} patternProperties in one object: {len(value)}"
        for pattern in value:
            if found := _too_many_choices(len(_IN_PATTERN.findall(pattern))):
                return found
    if found := _too_large(multiples):
        return found
    if (most := _Fitted(schema).most(schema)) > PATTERNS:
        return (
            f"at most {PATTERNS} patterns, formats and enumerations for one text, with those of allOf and $ref: {most}"
        )
    return ""


def _beyond(schema: dict[str, Any]) -> bool:
    """Return whether it describes integers that are all beyond 64 bits. llguidance would write one that is not."""
    kind = schema.get("type")
    if kind != "integer" and not (isinstance(kind, list) and "integer" in kind):
        return False
    bounds = {key: value for key, value in schema.items() if isinstance(value, Decimal)}  # sums could overflow
    return (
        bounds.get("minimum", 0) > MOST
        or bounds.get("exclusiveMinimum", 0) >= MOST
        or bounds.get("maximum", 0) <= LEAST
        or bounds.get("exclusiveMaximum", 0) <= LEAST + 1
    )


def _pairs(schema: Any) -> Iterator[tuple[str, Any]]:
    for each in _objects(schema):
        yield from each.items()


def _objects(schema: Any) -> Iterator[dict[str, Any]]:
    waiting = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


def _too_large(multiples: set[Decimal]) -> str:
    allowed = f"multipleOf whose least common multiple and sum are at most {MULTIPLES}, without zeros at the end"
    whole = set[int]()
    for value in multiples:
        if not value.is_finite() or len(value.as_tuple().digits) > 10 or abs(value.adjusted()) > 10:
            return allowed
        whole.add(int("".join(map(str, value.as_tuple().digits)).rstrip("0") or "1"))
    return allowed if math.lcm(*whole) > MULTIPLES or sum(whole) > MULTIPLES else ""


class _Fitted:
    """Counts how many patterns, formats and enumerations one text may have to match at once."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._known: dict[int, int] = {}
        self._all = sum(key in _OWN for key, _ in _pairs(root))

    def most(self, schema: Any) -> int:
        if not isinstance(schema, dict):
            return 0
        if id(schema) not in self._known:
            self._known[id(schema)] = 0  # for a schema that contains itself
            self._known[id(schema)] = self._most(schema)
        return self._known[id(schema)]

    def _most(self, schema: dict[str, Any]) -> int:
        together = sum(isinstance(schema.get(key), str | list) for key in _OWN)
        several = {key: [self.most(each) for each in _list(schema.get(key))] for key in _SEVERAL}
        together += sum(several["allOf"]) + sum(max(several[key], default=0) for key in _ONE_OF)
        if isinstance(schema.get("$ref"), str):
            together += self._referred(schema["$ref"])
        inside = [self.most(schema.get(key)) for key in _INSIDE]
        inside += [self.most(each) for key in _NAMED for each in _values(schema.get(key))]
        inside += [self.most(each) for each in _list(schema.get("prefixItems"))]
        return together + max(inside, default=0)

    def _referred(self, pointer: str) -> int:
        found = self._root
        if not pointer.startswith("#"):
            return self._all
        for part in pointer[1:].split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or part not in found:
                return self._all
            found = found[part]
        return self.most(found)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _values(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else []
