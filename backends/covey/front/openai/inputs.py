"""Turns the body of /v1/responses into the body of an equivalent chat. Knows no model.

An assistant's turn arrives as several items, which a chat joins in one message:

    reasoning, message, function_call, function_call  ->  {"role": "assistant", "reasoning_content", "content",
    function_call_output                                   "tool_calls": [...]}, {"role": "tool", ...}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from covey.front.failures import refused
from covey.front.openai.fields import check_only
from covey.front.openai.generation import MOST_MESSAGES
from covey_client.errors import InvalidRequest

LOG_PROBS, ENCRYPTED = "message.output_text.logprobs", "reasoning.encrypted_content"
ITEMS = ("message", "reasoning", "function_call", "function_call_output")
# Fields with another name in a chat. They are translated, and refused under that name.
CALLED = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "logprobs": "include",
}
ONLY: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys((*CALLED, "max_completion_tokens", "n", "conversation", "previous_response_id"), ()),
    **dict.fromkeys(("context_management", "max_tool_calls", "prompt"), ()),
    "background": (False,),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "truncation": ("disabled",),
}
CONVERSATION = "the whole conversation as input: nothing is stored here"
INSTEAD = {
    **CALLED,
    "background": "stream",
    "conversation": CONVERSATION,
    "max_completion_tokens": "max_output_tokens",
    "max_tool_calls": "parallel_tool_calls false: the client answers the calls",
    "n": "one request for each",
    "previous_response_id": CONVERSATION,
    "prompt": "instructions and input",
    "store": CONVERSATION,
}
# Fields that this module reads, or that only describe what happens anyway.
READ = (*ONLY, "input", "instructions", "max_output_tokens", "text", "reasoning", "include", "tools", "tool_choice")


def as_chat(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of the chat. Raises InvalidRequest."""
    given = {name: value for name, value in body.items() if value is not None}
    check_only(given, ONLY, INSTEAD, "route")
    chat = {name: value for name, value in given.items() if name not in (*READ, "metadata")}
    chat["messages"] = _messages(given.get("input"), given.get("instructions"))
    if "max_output_tokens" in given:
        chat["max_tokens"] = given["max_output_tokens"]
    text, reasoning = _object(given, "text"), _object(given, "reasoning")
    if "format" in text:
        chat["response_format"] = _format(text["format"])
    if "effort" in reasoning:
        chat["reasoning_effort"] = reasoning["effort"]
    include = given.get("include", [])
    if not isinstance(include, list) or not all(each in (LOG_PROBS, ENCRYPTED) for each in include):
        raise refused("include", include, f"a list of {LOG_PROBS} and {ENCRYPTED}")
    if LOG_PROBS in include or given.get("top_logprobs"):
        chat["logprobs"] = True
    if "tools" in given:
        tools = given["tools"]
        chat["tools"] = [_function(each) for each in tools] if isinstance(tools, list) else tools
    if "tool_choice" in given:
        chat["tool_choice"] = _function(given["tool_choice"])
    return chat


def renamed(error: InvalidRequest) -> InvalidRequest:
    """Return the error of a chat's field with the field's name in /v1/responses."""
    name = CALLED.get(error.field, "")
    return type(error)(str(error).replace(error.field, name, 1), name) if name else error


def _object(given: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = given.get(name, {})
    if not isinstance(value, dict):
        raise refused(name, value, "an object")
    return {key: each for key, each in value.items() if each is not None}


def _format(value: Any) -> Any:
    if not isinstance(value, dict) or value.get("type") != "json_schema":
        return value
    return {"type": "json_schema", "json_schema": {key: each for key, each in value.items() if key != "type"}}


def _function(value: Any) -> Any:
    """Return a tool in the form of chats, with the function's fields in their own object."""
    if not isinstance(value, dict) or value.get("type") != "function":
        return value
    function = {name: each for name, each in value.items() if name != "type" and each is not None}
    return {"type": "function", "function": function}


def _messages(value: Any, instructions: Any) -> list[dict[str, Any]]:
    items = [{"role": "user", "content": value}] if isinstance(value, str) else value
    if not isinstance(items, list) or not 1 <= len(items) <= MOST_MESSAGES:
        raise refused("input", value, f"a text, or a list of 1 to {MOST_MESSAGES} items")
    if not isinstance(instructions, (str, type(None))):
        raise refused("instructions", instructions, "a text")
    found: list[dict[str, Any]] = [] if instructions is None else [{"role": "system", "content": instructions}]
    for item in items:
        _add(found, item)
    return found


def _add(found: list[dict[str, Any]], item: Any) -> None:
    kind = item.get("type", "message") if isinstance(item, dict) else item
    if not isinstance(item, dict) or kind not in ITEMS:
        raise refused("input", kind, f"items of type {', '.join(ITEMS)}")
    last = found[-1] if found and found[-1]["role"] == "assistant" else None
    if kind == "message":
        message = {"role": item.get("role"), "content": item.get("content")}
        if last is not None and message["role"] == "assistant" and last.keys() == {"role", "reasoning_content"}:
            last |= message
        else:
            found.append(message)
    elif kind == "reasoning":
        parts = item.get("content") or []
        texts = [each.get("text") for each in parts if isinstance(each, dict)] if isinstance(parts, list) else [None]
        if not all(isinstance(text, str) for text in texts):
            raise refused("input", parts, "reasoning whose content is a list of parts with text")
        if texts:
            found.append({"role": "assistant", "reasoning_content": "\n".join(map(str, texts))})
    elif kind == "function_call":
        if last is None:
            found.append(last := {"role": "assistant"})
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        last.setdefault("tool_calls", []).append({"id": item.get("call_id"), "type": "function", "function": function})
    else:
        found.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")})
