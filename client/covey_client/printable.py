"""Shows texts of servers on a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return the text with escapes in place of control characters, which would move the cursor or change colours."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
