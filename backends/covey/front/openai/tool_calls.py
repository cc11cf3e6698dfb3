"""Parses tool calls out of an answer as its text comes.

The answer so far matches the grammar of its form (`forms.grammar`). So the parser knows the order of the parts, and
only searches for their ends.
"""

from __future__ import annotations

import re
import uuid
from typing import Any

from covey.front.openai.delta import Delta
from covey.front.openai.forms import Form
from covey.front.openai.marks import Marks, begun
from covey.front.openai.tools import Tools
from covey_client.response import Chunk

WORDS, NAME, ARGUMENTS, BETWEEN = "words", "a name", "arguments", "between calls"
_IN_JSON = re.compile(r'["\\{}\[\]]')


class ToolCallParser:
    """Implements `AnswerParser` for one choice's answer."""

    def __init__(self, form: Form, marks: Marks, tools: Tools) -> None:
        self._form, self._token = form, marks.ids.get(form.begin)
        begin = "" if form.begin in marks.hidden else form.begin
        self._key, self._tail, self._again = map(marks.visible, (form.key, form.tail, form.again))
        opens = begin + marks.visible(form.head)
        names = [function.name for function in tools.functions]
        # Without a visible tag, calls are recognised by their functions' names.
        named = not opens or not form.begin
        self._openings = [f"{opens}{name}{self._key}" for name in names] if named else [opens]
        self._opens = len(opens)
        self._required = tools.required  # the answer consists only of calls
        self._anchored = tools.required or not form.begin  # calls, if any, begin the answer
        self._seen = self._token is None  # whether text that opens calls really does
        self._state, self._text = WORDS, ""
        self._count = 0  # calls begun
        self._depth, self._in_string, self._escaped = 0, False, False

    def feed(self, chunk: Chunk) -> Delta:
        delta = Delta()
        self._text += chunk.text
        self._seen = self._seen or self._token in chunk.tokens
        while self._step(delta):
            pass
        if chunk.finish_reason:
            if self._state == WORDS and not self._required:  # else it is the beginning of a call, not words
                delta.content += self._text
            done = self._count and self._state == BETWEEN
            delta.finish_reason = "tool_calls" if done and chunk.finish_reason != "length" else chunk.finish_reason
        return delta

    def _step(self, delta: Delta) -> bool:
        """Parse one part. Return whether another may follow."""
        if self._state == WORDS:
            return self._words(delta)
        if self._state == NAME:
            return self._named(delta)
        if self._state == ARGUMENTS:
            return self._arguments(delta)
        again = self._tail + self._again
        if self._form.again and self._text.startswith(again) and len(self._text) > len(again):
            self._state, self._text = NAME, self._text[len(again) :]
            return True
        return False

    def _words(self, delta: Delta) -> bool:
        at = self._opened() if self._seen else -1
        if at == 0 or (at > 0 and not self._anchored):
            delta.content += self._text[:at]
            self._state, self._text = NAME, self._text[at + self._opens :]
            return True
        if self._seen and self._token is not None:
            return False  # more words may come before the calls
        held = self._held() if self._seen else 0
        sure = len(self._text) - held
        delta.content, self._text = delta.content + self._text[:sure], self._text[sure:]
        if self._anchored and delta.content:
            self._seen = False  # the answer began with words, so all of it is words
        return False

    def _opened(self) -> int:
        """Return where calls begin in the text; -1 if they do not."""
        if len(self._openings) == 1:
            return self._text.find(self._openings[0])
        return min((at for each in self._openings if (at := self._text.find(each)) >= 0), default=-1)

    def _held(self) -> int:
        """Return the length of the text's end that may be the beginning of calls."""
        if self._anchored:
            return len(self._text) if any(each.startswith(self._text) for each in self._openings) else 0
        return max(begun(self._text, each) for each in self._openings)

    def _named(self, delta: Delta) -> bool:
        name, key, rest = self._text.partition(self._key or "{")
        if not key:
            return False
        number, self._count = self._count, self._count + 1
        drawn = uuid.uuid4().hex
        own = drawn[:9] if self._form.short_ids else f"call_{drawn[:24]}"
        function = {"name": name, "arguments": ""}
        delta.tool_calls.append({"index": number, "id": own, "type": "function", "function": function})
        self._text = rest if self._key else key + rest
        self._state, self._depth = ARGUMENTS, 0
        return True

    def _arguments(self, delta: Delta) -> bool:
        end = self._end()
        piece, self._text = self._text[:end], self._text[end:]
        if piece:
            delta.tool_calls.append({"index": self._count - 1, "function": {"arguments": piece}})
        if end and not self._depth:
            self._state = BETWEEN
            return True
        return False

    def _end(self) -> int:
        """Return where the object ends in the text, or the length of the text if it does not."""
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
    """Join the parts from events into whole calls."""
    calls: list[dict[str, Any]] = []
    for part in parts:
        if "id" in part:
            function = dict(part["function"])
            calls.append({"id": part["id"], "type": part["type"], "function": function})
        else:
            calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
    return calls
