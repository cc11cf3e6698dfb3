"""The functions that a chat may call, as its body declares them: `tools`, `tool_choice` and `parallel_tool_calls`. Does
not know how a model writes calls (`forms`)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from covey.front.failures import refused
from covey.front.openai.fields import own_grammars
from covey.front.openai.schemas import of_function
from covey_client.wire import MAX_GRAMMAR_BYTES

FIELDS = ("tools", "tool_choice", "parallel_tool_calls")
NAME = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
MOST_TOOLS = 128
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}  # for a function without parameters
MODES = ("none", "auto", "required")


@dataclass(frozen=True)
class Function:
    """A function that may be called."""

    name: str
    schema: Mapping[str, Any]  # of its arguments, an object
    strict: bool  # refuse a schema that cannot be enforced completely


@dataclass(frozen=True)
class Tools:
    """The functions of one chat."""

    told: tuple[dict[str, Any], ...]  # for the chat template
    functions: tuple[Function, ...]  # those that may be called
    required: bool  # the answer must be a call, not words
    parallel: bool  # allow several calls; required ones only on demand, as just the grammar ends them


def taken(body: Mapping[str, Any]) -> tuple[Tools | None, dict[str, Any]]:
    """Return a body's tools, None if nothing may be called, and the rest of the body. Raises InvalidRequest."""
    rest = {name: value for name, value in body.items() if name not in FIELDS}
    told, choice, parallel = (body.get(name) for name in FIELDS)
    if not isinstance(parallel, (bool, type(None))):
        raise refused("parallel_tool_calls", parallel, "true or false")
    if not isinstance(told, (list, type(None))) or len(told or ()) > MOST_TOOLS:
        raise refused("tools", told, f"a list of at most {MOST_TOOLS} functions")
    functions = [_function(each) for each in told or ()]
    size = sum(len(json.dumps(function.schema)) for function in functions)
    if size > MAX_GRAMMAR_BYTES:  # the rules made from it are longer, and take the front's time
        raise refused("tools", f"parameters of {size} bytes", f"at most {MAX_GRAMMAR_BYTES}, without descriptions")
    by_name = {function.name: function for function in functions}
    if len(by_name) < len(functions):
        raise refused("tools", "two functions of one name", "different names")
    mode, name = _choice(choice or ("auto" if functions else "none"))
    if name and name not in by_name:
        raise refused("tool_choice", name, f"one of the tools: {', '.join(by_name)}")
    if mode == "required" and not functions:
        raise refused("tool_choice", choice, "none or auto, as there are no tools")
    if mode == "none" or not functions:
        return None, rest
    for grammar in own_grammars(body) if mode == "required" else ():
        raise refused(grammar, body[grammar], "nothing with a tool_choice whose answer must be a call")
    shown = tuple({"type": "function", "function": _without_strict(each["function"])} for each in told or ())
    allowed, required = (by_name[name],) if name else tuple(functions), mode == "required"
    several = not name and (parallel is True if required else parallel is not False)
    return Tools(shown, allowed, required, several), rest


def _function(value: Any) -> Function:
    said = value.get("function") if isinstance(value, dict) else None
    if not isinstance(said, dict) or value.get("type", "function") != "function":
        shown = value.get("type") if isinstance(value, dict) else value
        raise refused("tools", shown, "objects of type function with a function: this server has no other tools")
    name, schema, strict = said.get("name"), said.get("parameters"), said.get("strict")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise refused("tools", name, "functions with names of 1 to 64 letters, digits and . : _ -")
    if not isinstance(strict, (bool, type(None))):
        raise refused("tools", strict, f"{name}: strict is true or false")
    if schema is None:
        schema = NOTHING
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        raise refused("tools", schema, f"{name}: parameters are a JSON schema of type object")
    try:
        return Function(name, of_function(schema, strict=strict is True), strict is True)
    except RecursionError:
        raise refused("tools", schema, f"{name}: less deeply nested parameters") from None


def _without_strict(function: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool without `strict`, which models have not seen in training."""
    return {name: value for name, value in function.items() if name != "strict"}


def _choice(value: Any) -> tuple[str, str]:
    """Return the mode and its function; "" for all functions."""
    if isinstance(value, str) and value in MODES:
        return value, ""
    if isinstance(value, dict) and value.get("type") == "function":
        return "required", _name(value)
    raise refused("tool_choice", value, "none, auto, required, or one function")


def _name(value: Any) -> str:
    inner = value.get("function") if isinstance(value, dict) else None
    name = inner.get("name") if isinstance(inner, dict) else None
    if not isinstance(name, str):
        raise refused("tool_choice", value, "an object of type function with a function's name")
    return name


def told_calls(value: Any) -> list[dict[str, Any]]:
    """Return the calls in an assistant's message in the form for templates, with objects as arguments."""
    if not isinstance(value, list) or len(value) > MOST_TOOLS:
        raise refused("messages", value, f"tool_calls that are a list of at most {MOST_TOOLS}")
    return [_told_call(each) for each in value]


def _told_call(value: Any) -> dict[str, Any]:
    said = value.get("function") if isinstance(value, dict) else None
    if not isinstance(said, dict) or not isinstance(said.get("name"), str):
        raise refused("messages", value, "tool_calls with a function's name and arguments")
    arguments = said.get("arguments") or {}
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):
            arguments = json.loads(arguments)
    if not isinstance(arguments, dict):
        raise refused("messages", arguments, "tool_calls whose arguments are the text of a JSON object")
    return {**value, "type": "function", "function": {**said, "arguments": arguments}}
