"""Turns the schema of a function's arguments into one for a grammar."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

SAID_TO_READERS = ("title", "description", "examples", "default", "$comment", "deprecated", "readOnly", "writeOnly")
OF_NAMES = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
OF_ONE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
OF_SEVERAL = ("anyOf", "oneOf", "allOf", "prefixItems")
OPEN = ("additionalProperties", "unevaluatedProperties", "patternProperties", "anyOf", "oneOf", "allOf", "$ref", "if")
_LOOKS_AROUND = re.compile(r"\(\?<?[=!]|\\[1-9bB]")


def of_function(schema: Mapping[str, Any], *, strict: bool) -> dict[str, Any]:
    """Return the schema without annotations, which are most of its length. Unless it is `strict`, objects accept only
    their declared properties, and patterns that no grammar supports are left out."""
    return {"type": "object", **_held(schema, strict, closing=not strict and not _joins(schema))}


def _joins(value: Any) -> bool:
    """Return whether an object anywhere combines several schemas, so that none declares all its properties."""
    if isinstance(value, Mapping):
        return "allOf" in value or any(map(_joins, value.values()))
    return isinstance(value, list) and any(map(_joins, value))


def _held(schema: Any, strict: bool, *, closing: bool) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key in SAID_TO_READERS or (value is None and key not in ("const", "enum")):
            continue
        if key == "pattern" and not strict and isinstance(value, str) and _LOOKS_AROUND.search(value):
            continue
        inside = closing and not (key in ("anyOf", "oneOf", "not", "if", "then", "else") and "properties" in schema)
        if key in OF_NAMES and isinstance(value, Mapping):
            value = {name: _held(each, strict, closing=closing) for name, each in value.items()}
        elif key in OF_SEVERAL and isinstance(value, list):
            value = [_held(each, strict, closing=inside) for each in value]
        elif key in OF_ONE:
            value = _held(value, strict, closing=inside)
        found[key] = value
    if closing and "properties" in found and not any(key in found for key in OPEN):
        found["additionalProperties"] = False
    return found
