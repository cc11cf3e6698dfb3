"""The functions that a chat may call, as its body declares them: `tools`, `tool_choice` and `parallel_tool_calls`.
Knows no model's way to write a call (`forms`)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from covey.front.failures import refused
from covey.front.openai.schemas import of_function
from covey_client.wire import MAX_GRAMMAR_BYTES

FIELDS = ("tools", "tool_choice", "parallel_tool_calls")
NAME = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
MOST_TOOLS = 128
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}  # of a function without parameters
MODES = ("none", "auto", "required")


@dataclass(frozen=True)
class Function:
    """A function that may be called."""

    name: str
    schema: Mapping[str, Any]  # of its arguments, an object's
    strict: bool  # a schema that cannot be held whole is refused


@dataclass(frozen=True)
class Tools:
    """The functions of one chat."""

    told: tuple[dict[str, Any], ...]  # what the chat template is given
    functions: tuple[Function, ...]  # those of them that may be called
    required: bool  # else the model may answer in words
    parallel: bool  # more than one call in an answer; nothing but the grammar would end calls that are forced


def taken(body: Mapping[str, Any]) -> tuple[Tools | None, dict[str, Any]]:
    """Return a body's tools, None if nothing is to be called, and the rest of it. Raises InvalidRequest."""
    rest = {name: value for name, value in body.items() if name not in FIELDS}
    told, choice, parallel = (body.get(name) for name in FIELDS)
    if not isinstance(parallel, (bool, type(None))):
        raise refused("parallel_tool_calls", parallel, "true or false")
    if not isinstance(told, (list, type(None))) or len(told or ()) > MOST_TOOLS:
        raise refused("tools", told, f"a list of at most {MOST_TOOLS} functions")
    functions = [_function(each) for each in told or ()]
    size = sum(len(json.dumps(function.schema)) for function in functions)
    if size > MAX_GRAMMAR_BYTES:  # what is made of them is longer, and takes the front's time
        raise refused("tools", f"parameters of {size} bytes", f"at most {MAX_GRAMMAR_BYTES}, without descriptions")
    by_name = {function.name: function for function in functions}
    if len(by_name) < len(functions):
        raise refused("tools", "two functions of one name", "names of their own")
    mode, name = _choice(choice or ("auto" if functions else "none"))
    if name and name not in by_name:
        raise refused("tool_choice", name, f"one of the tools: {', '.join(by_name)}")
    if mode == "required" and not functions:
        raise refused("tool_choice", choice, "none or auto, where there are no tools")
    if mode == "none" or not functions:
        return None, rest
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
        raise refused("tools", schema, f"{name}: parameters that are nested less deeply") from None


def _without_strict(function: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool without `strict`, which models have not seen in training."""
    return {name: value for name, value in function.items() if name != "strict"}


def _choice(value: Any) -> tuple[str, str]:
    """Return the mode, and the function that it is about; "" where it is about all of them."""
    if isinstance(value, str) and value in MODES:
        return value, ""
    if isinstance(value, dict) and value.get("type") == "function":
        return "required", _name(value)
    raise refused("tool_choice", value, "none, auto, required, or a function by its name")


def _name(value: Any) -> str:
    inner = value.get("function") if isinstance(value, dict) else None
    name = inner.get("name") if isinstance(inner, dict) else None
    if not isinstance(name, str):
        raise refused("tool_choice", value, "an object of type function with a function's name")
    return name


def told_calls(value: Any) -> list[dict[str, Any]]:
    """Return the calls in an assistant's message as templates take them: with arguments that are objects."""
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
        raise refused("messages", arguments, "tool_calls with arguments that are a JSON object's text")
    return {**value, "type": "function", "function": {**said, "arguments": arguments}}
