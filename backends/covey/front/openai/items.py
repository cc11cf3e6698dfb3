"""Builds a response's output, a list of items, and the events that announce the items as they grow.

    output_item.added, content_part.added, output_text.delta ..., output_text.done, content_part.done, output_item.done

An event refers to parts of the items themselves: serialise it before asking for the next one.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from covey.front.openai.delta import Delta

Event = dict[str, Any]
MESSAGE, REASONING, CALL = "message", "reasoning", "function_call"
PREFIXES = {MESSAGE: "msg", REASONING: "rs", CALL: "fc"}


class Output:
    """Owns the items of one answer so far."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self._growing = False  # whether the last item is open
        self._log_probs: list[Any] = []  # of tokens whose text has not come yet

    @property
    def reasoning(self) -> str:
        """Return the text of all reasoning."""
        return "".join(item["content"][0]["text"] for item in self.items if item["type"] == REASONING)

    def feed(self, delta: Delta, log_probs: Sequence[Any] = ()) -> Iterator[Event]:
        """Add one chunk's delta and the log-probabilities of its tokens."""
        self._log_probs += log_probs
        if delta.reasoning:
            yield from self._text(REASONING, delta.reasoning)
        if delta.content:
            yield from self._text(MESSAGE, delta.content)
        for part in delta.tool_calls:
            function = part["function"]
            if "id" in part:
                yield from self._begin(CALL, call_id=part["id"], name=function["name"], arguments="")
            if arguments := function["arguments"]:
                self.items[-1]["arguments"] += arguments
                yield self._event("function_call_arguments.delta", delta=arguments)

    def end(self, status: str) -> Iterator[Event]:
        """Close the last item with this status. An empty answer becomes an empty message."""
        if not self.items:
            yield from self._begin_text(MESSAGE)
        yield from self._close(status)

    def _text(self, kind: str, delta: str) -> Iterator[Event]:
        if not self._growing or self.items[-1]["type"] != kind:
            yield from self._begin_text(kind)
        part = self.items[-1]["content"][0]
        part["text"] += delta
        yield self._event(f"{part['type']}.delta", content_index=0, delta=delta, **self._taken(part))

    def _taken(self, part: dict[str, Any]) -> dict[str, Any]:
        """Move the unassigned log-probabilities into this part. Return them in the form of events."""
        if "logprobs" not in part:
            return {}
        taken, self._log_probs = self._log_probs, []
        part["logprobs"] += taken
        return {"logprobs": taken}

    def _begin_text(self, kind: str) -> Iterator[Event]:
        if kind == MESSAGE:
            part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            yield from self._begin(kind, role="assistant", content=[])
        else:
            part = {"type": "reasoning_text", "text": ""}
            yield from self._begin(kind, summary=[], content=[])
        self.items[-1]["content"].append(part)
        yield self._event("content_part.added", content_index=0, part=part)

    def _begin(self, kind: str, **fields: Any) -> Iterator[Event]:
        yield from self._close("completed")
        name = f"{PREFIXES[kind]}_{uuid.uuid4().hex}"
        self.items.append({"type": kind, "id": name, "status": "in_progress", **fields})
        self._growing = True
        yield self._whole("output_item.added")

    def _close(self, status: str) -> Iterator[Event]:
        if not self._growing:
            return
        item = self.items[-1]
        if item["type"] == CALL:
            yield self._event("function_call_arguments.done", name=item["name"], arguments=item["arguments"])
        else:
            part = item["content"][0]
            self._taken(part)
            told = {name: part[name] for name in ("text", "logprobs") if name in part}
            yield self._event(f"{part['type']}.done", content_index=0, **told)
            yield self._event("content_part.done", content_index=0, part=part)
        item["status"], self._growing = status, False
        yield self._whole("output_item.done")

    def _event(self, kind: str, /, **fields: Any) -> Event:
        at = {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}
        return {"type": f"response.{kind}", **at, **fields}

    def _whole(self, name: str) -> Event:
        return {"type": f"response.{name}", "output_index": len(self.items) - 1, "item": self.items[-1]}
