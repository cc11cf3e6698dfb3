"""Run by LangChain's own Python: `langchain_asks.py BASE_URL` asks in its ways and prints what came as JSON."""

from __future__ import annotations

import functools
import json
import operator
import sys
from typing import Any, Literal

import openai
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel

MESSAGES = [HumanMessage("Do you like films?")]


class Weather(BaseModel):
    """The weather somewhere."""

    place: Literal["Rome", "Oslo"]


@tool(args_schema=Weather)
def weather(place: str) -> str:
    """The weather somewhere."""
    return place


def main(url: str) -> None:
    asked: dict[str, Any] = {"model": "covey", "base_url": url, "api_key": "none", "max_retries": 0}
    asked |= {"temperature": 0.0, "max_tokens": 16}
    chat = ChatOpenAI(**asked, stream_usage=True)
    whole, streamed = chat.invoke(MESSAGES), functools.reduce(operator.add, chat.stream(MESSAGES))
    long = ChatOpenAI(**{**asked, "max_tokens": 200})
    called = long.bind_tools([weather], tool_choice="required", parallel_tool_calls=False).invoke(MESSAGES)
    formed = long.with_structured_output(Weather, method="json_schema").invoke(MESSAGES)
    items = ChatOpenAI(**asked, use_responses_api=True).invoke(MESSAGES)
    try:
        ChatOpenAI(**{**asked, "temperature": -1.0}).invoke(MESSAGES)
        refused = ""
    except openai.BadRequestError as error:
        refused = str(error)
    found = {
        "whole": whole.content,
        "streamed": streamed.content,
        "batch": [each.content for each in chat.batch([MESSAGES, MESSAGES])],
        "responses": str(items.text),
        "counted": [each.usage_metadata["output_tokens"] for each in (whole, streamed, items)],
        "called": [[each["name"], each["args"]] for each in called.tool_calls],
        "formed": formed.model_dump(),
        "text": OpenAI(**asked).invoke("Once upon a time"),
        "refused": refused,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
