"""Run by litellm's own Python: `litellm_asks.py BASE_URL` asks in its ways and prints what came as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import litellm

MESSAGES = [{"role": "user", "content": "Do you like films?"}]
PLACE = {"type": "object", "properties": {"place": {"enum": ["Rome"]}}, "required": ["place"]}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": PLACE | {"additionalProperties": False}}}


def main(url: str) -> None:
    asked: dict[str, Any] = {"api_base": url, "api_key": "none", "max_tokens": 16, "temperature": 0.0, "seed": 3}
    chat = {"model": "openai/covey", "messages": MESSAGES, **asked}
    whole = litellm.completion(**chat)
    parts = list(litellm.completion(**chat, stream=True, stream_options={"include_usage": True}))
    called = litellm.completion(
        **{**chat, "max_tokens": 200}, tools=[TOOL], tool_choice="required", parallel_tool_calls=False
    )
    text = litellm.text_completion(model="text-completion-openai/covey", prompt="Once upon a time", **asked)
    try:
        litellm.completion(**{**chat, "temperature": -1.0})
        refused = ""
    except litellm.BadRequestError as error:
        refused = str(error)
    calls = called.choices[0].message.tool_calls
    found = {
        "whole": whole.choices[0].message.content,
        "streamed": "".join(part.choices[0].delta.content or "" for part in parts if part.choices),
        "counted": [each.usage.completion_tokens for each in (whole, parts[-1])],
        "called": [[call.function.name, json.loads(call.function.arguments)] for call in calls],
        "ended": called.choices[0].finish_reason,
        "text": text.choices[0].text,
        "refused": refused,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
