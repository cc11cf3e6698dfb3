"""Marks: tokens that stand for a fixed text such as `<tool_call>`, and how a grammar writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Marks:
    """The marks of one tokenizer."""

    ids: Mapping[str, int]
    hidden: frozenset[str]  # marks that texts do not show

    def visible(self, text: str) -> str:
        """Return the text without special tokens, as an answer shows it."""
        return "".join(part for part in self.parts(text) if part not in self.hidden)

    def parts(self, text: str) -> list[str]:
        """Split the text at its marks, and keep these."""
        return [part for part in self._any.split(text) if part] if self.ids else [text] * bool(text)

    @cached_property
    def _any(self) -> re.Pattern[str]:
        return re.compile(f"({'|'.join(map(re.escape, sorted(self.ids, key=len, reverse=True)))})")

    def terms(self, text: str) -> str:
        """Return the text as terms of a grammar."""
        return " ".join(f"<[{self.ids[part]}]>" if part in self.ids else quoted(part) for part in self.parts(text))

    def free(self, terminal: str, mark: str) -> str:
        """Return the term for any number of this terminal and of all marks except one."""
        others = _ranges(number for each, number in self.ids.items() if each != mark)
        return f"({terminal}{others and f' | <[{others}]>'})*"


def quoted(text: str) -> str:
    return json.dumps(text)


def begun(text: str, mark: str) -> int:
    """Return the length of a mark's beginning at the end of the text."""
    at = text.find(mark[0], max(0, len(text) - len(mark) + 1))
    while at >= 0 and not mark.startswith(text[at:]):
        at = text.find(mark[0], at + 1)
    return len(text) - at if at >= 0 else 0


def _ranges(ids: Iterable[int]) -> str:
    """Return `1-3,7` for 1, 2, 3 and 7."""
    found: list[list[int]] = []
    for number in sorted(ids):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(f"{low}-{high}" if high > low else str(low) for low, high in found)
