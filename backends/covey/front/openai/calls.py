"""The calls in an answer, told as its text comes. The answer fits the grammar of its form (`forms.grammar`), as far as
it goes: what stands where is known, and only where the parts end is looked for."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass, field
from typing import Any

from covey.front.openai.forms import Form, Marks
from covey_client.response import Chunk

WORDS, NAME, ARGUMENTS, BETWEEN = "words", "a name", "arguments", "between calls"
_IN_JSON = re.compile(r'["\\{}\[\]]')


@dataclass
class Said:
    """What one chunk brought."""

    content: str = ""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)  # parts of calls, as events tell them
    finish_reason: str = ""

    @property
    def empty(self) -> bool:
        return not (self.content or self.tool_calls or self.finish_reason)


class Reading:
    """One choice's answer so far."""

    def __init__(self, form: Form, marks: Marks, *, required: bool) -> None:
        """`required`: there is nothing but calls in it."""
        self._form, self._token = form, marks.ids.get(form.begin)
        begin = "" if form.begin in marks.hidden else form.begin
        self._opens = begin + marks.visible(form.head)
        self._key, self._tail, self._again = map(marks.visible, (form.key, form.tail, form.again))
        self._anchored = required or not form.begin  # calls, where there are any, begin the answer
        self._seen = self._token is None  # whether a text that opens calls is what it seems
        self._state, self._text = WORDS, ""
        self._count = 0  # of calls begun
        self._depth, self._in_string, self._escaped = 0, False, False

    def feed(self, chunk: Chunk) -> Said:
        said = Said()
        self._text += chunk.text
        self._seen = self._seen or self._token in chunk.tokens
        while self._step(said):
            pass
        if chunk.finish_reason:
            if self._state == WORDS:
                said.content += self._text
            done = self._count and self._state == BETWEEN
            said.finish_reason = "tool_calls" if done and chunk.finish_reason != "length" else chunk.finish_reason
        return said

    def _step(self, said: Said) -> bool:
        """Whether there may be another one."""
        if self._state == WORDS:
            return self._words(said)
        if self._state == NAME:
            name, key, rest = self._text.partition(self._key)
            if key:
                said.tool_calls.append(self._begun(name))
                self._state, self._text, self._depth = ARGUMENTS, rest, 0
            return bool(key)
        if self._state == ARGUMENTS:
            return self._arguments(said)
        again = self._tail + self._again
        if self._again and self._text.startswith(again):
            self._state, self._text = NAME, self._text[len(again) :]
            return True
        return False

    def _words(self, said: Said) -> bool:
        at = self._text.find(self._opens) if self._seen else -1
        if at == 0 or (at > 0 and not self._anchored):
            said.content += self._text[:at]
            self._state, self._text = NAME, self._text[at + len(self._opens) :]
            return True
        if self._seen and self._token is not None:
            return False  # what is in front of the calls has not come to its end
        held = self._held() if self._seen else 0
        sure = len(self._text) - held
        said.content, self._text = said.content + self._text[:sure], self._text[sure:]
        if self._anchored and said.content:
            self._seen = False  # it began otherwise: words to the end
        return False

    def _held(self) -> int:
        """Characters at the end that calls may begin with."""
        if self._anchored:
            return len(self._text) if self._opens.startswith(self._text) else 0
        most = min(len(self._text), len(self._opens) - 1)
        return next((size for size in range(most, 0, -1) if self._text.endswith(self._opens[:size])), 0)

    def _begun(self, name: str) -> dict[str, Any]:
        number, self._count = self._count, self._count + 1
        drawn = uuid.uuid4().hex
        own = drawn[:9] if self._form.short_ids else f"call_{drawn[:24]}"
        return {"index": number, "id": own, "type": "function", "function": {"name": name, "arguments": ""}}

    def _arguments(self, said: Said) -> bool:
        end = self._end()
        piece, self._text = self._text[:end], self._text[end:]
        if piece:
            said.tool_calls.append({"index": self._count - 1, "function": {"arguments": piece}})
        if end and not self._depth:
            self._state = BETWEEN
            return True
        return False

    def _end(self) -> int:
        """Where the object ends in the text, or the text's own end."""
        at = 0
        if self._escaped and self._text:
            at, self._escaped = 1, False
        while found := _IN_JSON.search(self._text, at):
            mark, at = found[0], found.end()
            if mark == "\\":
                self._escaped = at == len(self._text)
                at += 1
            elif mark == '"':
                self._in_string = not self._in_string
            elif not self._in_string:
                self._depth += 1 if mark in "{[" else -1
                if not self._depth:
                    return at
        return len(self._text)


def joined(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Whole calls of the parts that events tell."""
    calls: list[dict[str, Any]] = []
    for part in parts:
        if "id" in part:
            function = dict(part["function"])
            calls.append({"id": part["id"], "type": part["type"], "function": function})
        else:
            calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
    return calls
