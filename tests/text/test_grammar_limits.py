"""What of a grammar is refused before it is compiled."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from covey.text.grammar_limits import too_much
from covey.text.grammar_process import PROCESSOR_SECONDS


def doubled(atom: str, times: int) -> str:
    """One terminal that is made of so many powers of two of another."""
    rules = "".join(f"T{each + 1}: T{each} T{each}\n" for each in range(times))
    return f'start: R\nR: "xxxxxxxx" ("b" | "c") T{times}\nT0: {atom}\n{rules}'


def multiples(*numbers: object) -> str:
    return json.dumps({"allOf": [{"type": "integer", "multipleOf": number} for number in numbers]})


def fitting(count: int) -> dict[str, Any]:
    return {"allOf": [{"type": "string", "pattern": f".*{letter}.*"} for letter in "abcdefghijklmnop"[:count]]}


def chained(count: int) -> dict[str, Any]:
    """As many patterns for one text, each of which refers to the next."""
    named = {f"d{at}": {"pattern": f".*{at}.*", "$ref": f"#/$defs/d{at + 1}"} for at in range(count)}
    return {"$defs": {**named, f"d{count}": {"type": "string"}}, "$ref": "#/$defs/d0"}


REFUSED = {
    "a large multiple": ("grammar_json", '{"type":"integer","multipleOf":300007}', "multipleOf"),
    "one written by an escape": ("grammar_json", '{"type":"integer","multiple\\u004ff":300007}', "multipleOf"),
    "of the wrong precision": ("grammar_json", multiples(1.000000000001), "multipleOf"),
    "multiples of several": ("grammar_json", multiples(97, 101, 103), "multipleOf"),
    "in rules": ("grammar_lark", f"start: %json {multiples(300007)}", "multipleOf"),
    "parts that may be left out": ("grammar_regex", "a?" * 20000 + "a" * 5000, "500 of"),
    "behind a cheap start": ("grammar_regex", "xxxxxxxx(b|c)" + "a?" * 2000, "500 of"),
    "alternatives of nothing": ("grammar_regex", "(|a)(a|)(a|^)(a||b)(a|\\b)" * 150, "500 of"),
    "in a pattern": ("grammar_json", json.dumps({"type": "string", "pattern": "a?" * 2000}), "500 of"),
    "in names": ("grammar_json", json.dumps({"patternProperties": {"a?" * 2000: {}}}), "500 of"),
    "in whitespace": ("grammar_json", json.dumps({"x-guidance": {"whitespace_pattern": "a?" * 2000}}), "500 of"),
    "doubled by rules": ("grammar_lark", doubled('"a"?', 13), "500 of"),
    "doubled without end": ("grammar_lark", doubled('"a" | ""', 500), "500 of"),
    "hidden behind a schema": ("grammar_lark", f'start: T\nT: /%json ["{"a?" * 2000}"]/', "500 of"),
    "several patterns": ("grammar_json", json.dumps(fitting(16)), "4 patterns"),
    "patterns by reference": ("grammar_json", json.dumps(chained(20)), "4 patterns"),
    "patterns of a property": ("grammar_json", json.dumps({"properties": {"a": fitting(5)}}), "4 patterns"),
    "patterns of an item": ("grammar_json", json.dumps({"prefixItems": [fitting(5)]}), "4 patterns"),
    "patterns of nobody knows what": ("grammar_json", json.dumps({"$ref": "other", "$defs": fitting(5)}), "4 patterns"),
    "integers beyond 64 bits": ("grammar_json", '{"items": {"type": "integer", "minimum": 1e19}}', "to 922"),
    "negative ones": ("grammar_json", f'{{"type": "integer", "exclusiveMaximum": {1 - (1 << 63)}}}', "from -922"),
    "integers beyond decimals": ("grammar_json", '{"type": "integer", "minimum": 1e1000000}', "to 922"),
    "integers among others": ("grammar_json", '{"type": ["integer", "null"], "maximum": -1e1000000}', "from -922"),
    "many small multiples": ("grammar_json", multiples(*(2**n for n in range(15))), "multipleOf"),
    "many names": ("grammar_json", json.dumps({"patternProperties": {name: {} for name in "abcdefghi"}}), "in one"),
    "nesting": ("grammar_json", "[" * 60_000, "nested"),
    "nesting in rules": ("grammar_lark", "start: %json " + '{"items": ' * 400 + "{}" + "}" * 400, "nested"),
    "a multiple beyond decimals": ("grammar_json", '{"multipleOf": 1e1000000}', "multipleOf"),
    "an exponent of twenty digits": ("grammar_json", f'{{"multipleOf": 1e{"9" * 20}}}', "multipleOf"),
}  # fmt: skip
ALLOWED = {
    "a usual multiple": ("grammar_json", multiples(0.01, 5, 100, 100000, 60)),
    "a name that is a keyword": ("grammar_json", '{"properties": {"multipleOf": {"type": "integer"}, "pattern": {}}}'),
    "a schema of itself": ("grammar_json", '{"properties": {"next": {"$ref": "#"}, "id": {"pattern": "^[a-z]+$"}}}'),
    "a pattern for each": ("grammar_json", json.dumps({"properties": {f"k{n}": {"pattern": "a+"} for n in range(99)}})),
    "a long enumeration": ("grammar_json", json.dumps({"enum": [f"is it {number}?" for number in range(3000)]})),
    "some choices": ("grammar_regex", "(a|b)?" * 200),
    "many words": ("grammar_regex", "|".join(f"word{number}" for number in range(3000))),
    "many alternatives": ("grammar_lark", "start: " + " | ".join(f'"is it {number}"' for number in range(3000))),
    "a schema in rules": ("grammar_lark", f"start: %json {json.dumps({'enum': ['?'] * 2000})}"),
    "rules of themselves": ("grammar_lark", 'start: e\ne: e "+" t | t\nt: /[0-9]+/ | "(" e ")"'),
    "no schema at all": ("grammar_json", "{"),
    "64 bits without a sign": ("grammar_json", '{"type": "integer", "minimum": 0, "maximum": 18446744073709551615}'),
    "a bound beyond decimals": ("grammar_json", f'{{"minimum": 1e{"9" * 20}}}'),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_llguidance_does_not_count_is_refused(case: str) -> None:
    name, text, said = REFUSED[case]
    assert said in too_much(name, text)


@pytest.mark.parametrize("case", ALLOWED)
def test_what_costs_little_is_allowed(case: str) -> None:
    assert not too_much(*ALLOWED[case])


def test_a_long_name_takes_no_time_by_its_length_squared() -> None:
    began = time.thread_time()
    assert not too_much("grammar_lark", "a" * 65_000)
    assert time.thread_time() - began < PROCESSOR_SECONDS
