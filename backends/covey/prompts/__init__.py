"""The project's own prompts, by domain: sixteen questions for a model that chats, in `questions.json`, and forty texts
to go on with, each in the one form that the bundled test pair was trained on.

| domain | a document | a prompt ends |
|---|---|---|
| `code` | `# Python` on a line of its own, then source | anywhere in the source |
| `math` | `Question: ...`, newline, `Answer: ...` | after `Answer:` |
| `translation` | pairs of `English: ...`, newline, `German: ...`, a newline between pairs | after `German:` |
| `summarisation` | `Abstract: ...`, newline, `Summary: ...` | after `Summary:` |
| `chat` | turns of `User: ...`, newline, `Assistant: ...`, a newline between turns | after `Assistant:` |
| `edits` | `Edit: ...`, newline, `Before:` and a text, newline, `After:` and the text after the edit | after `After:` |

A prompt carries no trailing space: the space belongs to the next token.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

__all__ = ["DOMAINS", "load", "questions"]

DOMAINS: tuple[str, ...] = ("code", "math", "translation", "summarisation", "chat", "edits")


def load(domain: str) -> list[str]:
    """Return the texts of one domain to go on with, in a fixed order."""
    _check(domain)
    prompts: list[str] = _read(domain)
    return prompts


def questions(domain: str) -> list[str]:
    """Return what a user might ask a model of one domain, in a fixed order."""
    _check(domain)
    found: list[str] = _read("questions")[domain]
    return found


def _check(domain: str) -> None:
    if domain not in DOMAINS:
        raise ValueError(f"no prompts for {domain!r}: the domains are {', '.join(DOMAINS)}")


def _read(name: str) -> Any:
    return json.loads(resources.files(__package__).joinpath(f"{name}.json").read_text(encoding="utf-8"))
