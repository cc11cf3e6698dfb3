"""Checks a body's prompts: texts and token ids of a completion, messages of a chat. Knows no tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from covey.front.failures import refused
from covey.front.openai.tools import told_calls

MOST_PROMPTS = 128
MOST_MESSAGES = 4096
ROLES = ("system", "user", "assistant", "tool")
TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}  # parts of content
RENAMED = {"developer": "system"}  # OpenAI's newer name, unknown to templates


def prompts(value: Any) -> list[str | list[int]]:
    """Return the prompts of a completion, each a text or a list of ids."""
    if isinstance(value, str) or (isinstance(value, list) and value and not isinstance(value[0], (str, list))):
        return [value]
    if not isinstance(value, list) or not 1 <= len(value) <= MOST_PROMPTS:
        raise refused("prompt", value, f"a text, a list of token ids, or 1 to {MOST_PROMPTS} of these")
    if not all(isinstance(each, type(value[0])) for each in value):
        raise refused("prompt", value, "only texts, or only lists of token ids")
    return list(value)


def messages(value: Any) -> list[dict[str, Any]]:
    """Return messages for templates, each with one text as its content."""
    if not isinstance(value, list) or not 1 <= len(value) <= MOST_MESSAGES:
        raise refused("messages", value, f"a list of 1 to {MOST_MESSAGES} messages")
    return [_message(each) for each in value]


def _message(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        raise refused("messages", value, "objects with a role and content")
    if value.get("function_call"):
        raise refused("messages", "function_call", "tool_calls, its newer name")
    role = RENAMED.get(value["role"], value["role"])
    if role not in ROLES:
        raise refused("messages", value["role"], f"the roles {', '.join((*ROLES, *RENAMED))}")
    found = {**value, "role": role, "content": _content(value.get("content"))}
    if value.get("tool_calls"):
        return {**found, "tool_calls": told_calls(value["tool_calls"])}
    found.pop("tool_calls", None)  # templates test for its presence
    return found


def _content(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise refused("messages", value, "content that is a text or a list of parts")
    return "\n".join(map(_part, value))  # like vLLM


def _part(part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else "text"
    text = part.get(TEXTS.get(kind)) if isinstance(part, dict) and isinstance(kind, str) else part
    if not isinstance(text, str):
        raise refused("messages", kind, "content parts of type text: this model reads only text")
    return text


def template_settings(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the template's settings other than the messages."""
    given, add = body.get("chat_template_kwargs"), body.get("add_generation_prompt")
    if not isinstance(given, (dict, type(None))):
        raise refused("chat_template_kwargs", given, "an object")
    if not isinstance(add, (bool, type(None))):
        raise refused("add_generation_prompt", add, "true or false")
    effort, thinking = body.get("reasoning_effort"), {}
    if not isinstance(effort, (str, type(None))):
        raise refused("reasoning_effort", effort, "a text")
    if effort is not None:
        thinking = {"reasoning_effort": effort, **({"enable_thinking": False} if effort == "none" else {})}
    return {**thinking, **(given or {}), "add_generation_prompt": add is not False}
