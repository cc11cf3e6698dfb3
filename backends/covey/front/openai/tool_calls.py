"""Parses tool calls out of an answer as its text comes.

As far as it goes the answer fits the grammar of its form (`forms.grammar`): what stands where is known, and only where
the parts end is looked for.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from typing import Any

from covey.front.openai import pairs
from covey.front.openai.delta import Delta
from covey.front.openai.forms import Form
from covey.front.openai.marks import Marks, begun
from covey.front.openai.pairs import EITHER, TEXT
from covey.front.openai.tools import Tools
from covey_client.response import Chunk

WORDS, NAME, ARGUMENTS, BETWEEN = "words", "a name", "arguments", "between calls"
KEY, VALUE = "an argument's name", "an argument's value"  # where arguments stand one by one
_IN_JSON = re.compile(r'["\\{}\[\]]')


class ToolCallParser:
    """Implements `AnswerParser` for one choice's answer."""

    def __init__(self, form: Form, marks: Marks, tools: Tools) -> None:
        self._form, self._token = form, marks.ids.get(form.begin)
        self._functions = {function.name: function for function in tools.functions}
        begin = "" if form.begin in marks.hidden else form.begin
        self._key, self._tail, self._again = map(marks.visible, (form.key, form.tail, form.again))
        opens = begin + marks.visible(form.head)
        # Without a tag that a text shows, calls are known by their functions' names.
        named = not opens or not form.begin
        self._openings = [f"{opens}{name}{self._key}" for name in self._functions] if named else [opens]
        self._opens = len(opens)
        self._required = tools.required  # there is nothing but calls in it
        self._anchored = tools.required or not form.begin  # calls, where there are any, begin the answer
        self._seen = self._token is None  # whether a text that opens calls is what it seems
        self._state, self._text = WORDS, ""
        self._count = 0  # of calls begun
        self._depth, self._in_string, self._escaped = 0, False, False
        self._marks = [marks.visible(each) for each in vars(form.pairs).values()] if form.pairs else []
        self._kinds: Mapping[str, str] = {}
        self._kind, self._several = TEXT, False  # of the argument at hand, and whether it has one before it

    def feed(self, chunk: Chunk) -> Delta:
        delta = Delta()
        self._text += chunk.text
        self._seen = self._seen or self._token in chunk.tokens
        while self._step(delta):
            pass
        if chunk.finish_reason:
            if self._state == WORDS and not self._required:  # else it is a call's beginning, and no words
                delta.content += self._text
            elif self._state == VALUE and self._kind != EITHER:
                self._tell(delta, self._written(self._text))
            done = self._count and self._state == BETWEEN
            delta.finish_reason = "tool_calls" if done and chunk.finish_reason != "length" else chunk.finish_reason
        return delta

    def _step(self, delta: Delta) -> bool:
        """Parse one part; return whether there may be another one."""
        if self._state == WORDS:
            return self._words(delta)
        if self._state == NAME:
            return self._named(delta)
        if self._state == ARGUMENTS:
            return self._arguments(delta)
        if self._state == KEY:
            return self._argument(delta)
        if self._state == VALUE:
            return self._value(delta)
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
            return False  # what is in front of the calls has not come to its end
        held = self._held() if self._seen else 0
        sure = len(self._text) - held
        delta.content, self._text = delta.content + self._text[:sure], self._text[sure:]
        if self._anchored and delta.content:
            self._seen = False  # it began otherwise: words to the end
        return False

    def _opened(self) -> int:
        """Return where calls begin in the text; -1 where they do not."""
        if len(self._openings) == 1:
            return self._text.find(self._openings[0])
        return min((at for each in self._openings if (at := self._text.find(each)) >= 0), default=-1)

    def _held(self) -> int:
        """Return how many characters at the end may be the beginning of calls."""
        if self._anchored:
            return len(self._text) if any(each.startswith(self._text) for each in self._openings) else 0
        return max(begun(self._text, each) for each in self._openings)

    def _named(self, delta: Delta) -> bool:
        name, key, rest = self._text.partition(self._key or ("<" if self._form.pairs else "{"))
        if not key:
            return False
        number, self._count = self._count, self._count + 1
        drawn = uuid.uuid4().hex
        own = drawn[:9] if self._form.short_ids else f"call_{drawn[:24]}"
        function = {"name": name, "arguments": ""}
        delta.tool_calls.append({"index": number, "id": own, "type": "function", "function": function})
        self._text = rest if self._key else key + rest
        self._state, self._depth = ARGUMENTS, 0
        if self._form.pairs:
            self._tell(delta, "{")
            self._kinds = pairs.kinds(self._functions[name]) if name in self._functions else {}
            self._state, self._several = KEY, False
        return True

    def _tell(self, delta: Delta, piece: str) -> None:
        if piece:
            delta.tool_calls.append({"index": self._count - 1, "function": {"arguments": piece}})

    def _arguments(self, delta: Delta) -> bool:
        end = self._end()
        piece, self._text = self._text[:end], self._text[end:]
        self._tell(delta, piece)
        if end and not self._depth:
            self._state = BETWEEN
            return True
        return False

    def _end(self) -> int:
        """Return where the object ends in the text; the text's own end if it does not."""
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

    def _argument(self, delta: Delta) -> bool:
        """Parse the next argument's name, or the end of the arguments; return whether there was one."""
        begin, middle, _ = self._marks
        if self._text.startswith(begin):
            name, key, rest = self._text[len(begin) :].partition(middle)
            if key:
                self._kind = self._kinds.get(name, EITHER)
                opens = '"' if self._kind == TEXT else ""
                self._tell(delta, f"{', ' if self._several else ''}{json.dumps(name, ensure_ascii=False)}: {opens}")
                self._state, self._text, self._several = VALUE, rest, True
            return bool(key)
        if self._text and not begin.startswith(self._text):
            self._tell(delta, "}")
            self._state = BETWEEN
            return True
        return False

    def _value(self, delta: Delta) -> bool:
        end = self._marks[2]
        value, found, rest = self._text.partition(end)
        if found:
            self._tell(delta, pairs.decided(value) if self._kind == EITHER else self._written(value))
            self._tell(delta, '"' if self._kind == TEXT else "")
            self._state, self._text = KEY, rest
            return True
        if self._kind != EITHER:
            sure = len(value) - begun(value, end)
            self._tell(delta, self._written(value[:sure]))
            self._text = value[sure:]
        return False

    def _written(self, value: str) -> str:
        """Return the value as JSON writes it."""
        return json.dumps(value, ensure_ascii=False)[1:-1] if self._kind == TEXT else value


def joined(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join the parts that events have into whole calls."""
    calls: list[dict[str, Any]] = []
    for part in parts:
        if "id" in part:
            function = dict(part["function"])
            calls.append({"id": part["id"], "type": part["type"], "function": function})
        else:
            calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
    return calls
