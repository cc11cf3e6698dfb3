"""Finds the new part of a repeated answer, after the first one broke off.

With the same seed, another server of the same identity repeats the answer, split into other events:

    told    {"delta": {"content": "Once up"}}
    again   {"delta": {"content": "Once upon a"}}     ->  {"delta": {"content": "on a"}}

This module knows only the parts of OpenAI's chats and completions that grow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

GROWING = ("text", "content", "reasoning_content", "reasoning", "arguments")  # texts that grow; all lists grow as well
ONCE = ("role", "id", "type", "name", "finish_reason")
NAMES = ("id", "created")  # of the answer: those of the first event are kept

Path = tuple[Any, ...]


class CannotGoOn(Exception):
    """The repetition differs from the first answer."""


class Told:
    """The part of one answer that the client has received."""

    def __init__(self) -> None:
        self._names: dict[str, Any] = {}
        self._grown: dict[Path, list[Any]] = {}  # pieces
        self._once: dict[Path, Any] = {}
        self.repeating = False  # if True, these are set:
        self._before: dict[Path, Any] = {}  # all pieces before the repetition, joined
        self._at: dict[Path, int] = {}  # progress of the repetition in `_before`
        self._new = False

    def again(self) -> None:
        """Begin a repetition."""
        self._before = {path: _joined(pieces) for path, pieces in self._grown.items()}
        self._grown = {path: [whole] for path, whole in self._before.items()}
        self._at, self.repeating = {}, True

    def new(self, event: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the event's new part, or None if the client has all of it already. Raises CannotGoOn."""
        choices = event.get("choices")
        if not isinstance(choices, list):
            return dict(event)  # an error
        self._names = self._names or {name: event[name] for name in NAMES if name in event}
        self._new = not choices and self._first(None, ("totals",))
        rest = [self._rest(choice, (choice.get("index"),)) for choice in choices]
        return {**event, **self._names, "choices": rest} if self._new or not self.repeating else None

    def _rest(self, value: Any, path: Path) -> Any:
        if isinstance(value, dict):
            return {
                name: self._rest(each, (*path, name))
                for name, each in value.items()
                if name not in ONCE or each is None or self._first(each, (*path, name))
            }
        if isinstance(value, list) and path[-1] == "tool_calls":
            return [self._rest(each, (*path, each.get("index"))) for each in value]
        if isinstance(value, list) or (isinstance(value, str) and path[-1] in GROWING):
            return self._behind(value, path)
        return value

    def _first(self, value: Any, path: Path) -> bool:
        """Return whether to send this value; a repetition sends only new ones. Raises CannotGoOn if it has changed."""
        if path not in self._once:
            self._once[path], self._new = value, True
        elif self._once[path] != value and path[-1] != "id":
            raise CannotGoOn(f"{path[-1]} is {value!r}, and was {self._once[path]!r}")
        else:
            return not self.repeating
        return True

    def _behind(self, piece: Any, path: Path) -> Any:
        before, at = self._before.get(path, piece[:0]), self._at.get(path, 0)
        known = before[at : at + len(piece)]
        if piece[: len(known)] != known:
            raise CannotGoOn("the repeated answer has another text")
        self._at[path] = at + len(piece)
        rest = piece[len(known) :]
        if rest:
            self._new = True
            self._grown.setdefault(path, []).append(rest)
        return rest


def _joined(pieces: list[Any]) -> Any:
    return "".join(pieces) if isinstance(pieces[0], str) else [each for piece in pieces for each in piece]
