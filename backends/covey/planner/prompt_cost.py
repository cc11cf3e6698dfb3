"""What reading new requests' prompts costs a drafter while drafting goes on, in seconds per token emitted.

Each request is read once and emits its tokens at any depth, so that a batch owes more of it the faster it is. Reading
after a pause is C_switch and is not in here (`covey.planner.switching`).
"""

from __future__ import annotations

import math

from covey.types import JsonDict

MEMORY = 20000.0  # tokens after which an old round counts 1/e
FREE = 1000.0  # tokens thought to have cost nothing at the start: the first requests are new all at once


class PromptCost:
    """Owns two sums."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._tokens = FREE

    @property
    def per_token(self) -> float:
        return self._seconds / self._tokens

    def update(self, seconds: float, tokens: int) -> None:
        """A round that went on drafting spent so long reading, and emitted so many tokens."""
        keep = max(0.0, 1.0 - tokens / MEMORY)
        self._seconds = self._seconds * keep + seconds
        self._tokens = self._tokens * keep + tokens

    def state(self) -> JsonDict:
        return {"seconds": self._seconds, "tokens": self._tokens}

    def restore(self, state: JsonDict) -> None:
        """ValueError when it is not such a state; then nothing changes."""
        seconds, tokens = float(state["seconds"]), float(state["tokens"])
        if not (0 <= seconds < math.inf and 0 < tokens < math.inf):
            raise ValueError("prompt cost out of range")
        self._seconds, self._tokens = seconds, tokens
