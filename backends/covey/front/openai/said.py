"""What a part of an answer says, before it has a shape."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from covey_client.response import Chunk


@dataclass
class Said:
    """What one chunk brought."""

    content: str = ""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)  # parts of calls, as events tell them
    finish_reason: str = ""
    reasoning: str = ""  # thought before the answer

    @property
    def empty(self) -> bool:
        return not (self.content or self.tool_calls or self.finish_reason or self.reasoning)


class Reader(Protocol):
    """Of one choice's answer."""

    def feed(self, chunk: Chunk) -> Said: ...
