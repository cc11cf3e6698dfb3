"""The interface of parsers that split an answer's text into content, reasoning and tool calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from covey_client.response import Chunk


@dataclass
class Delta:
    """One chunk's part of an answer, by OpenAI's fields."""

    content: str = ""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)  # parts of calls, in the form of events
    finish_reason: str = ""
    reasoning: str = ""  # thoughts before the answer

    @property
    def empty(self) -> bool:
        return not (self.content or self.tool_calls or self.finish_reason or self.reasoning)


class AnswerParser(Protocol):
    """Splits the chunks of one choice's answer."""

    def feed(self, chunk: Chunk) -> Delta: ...
