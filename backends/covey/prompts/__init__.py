"""The project's own prompts, forty per domain, each in the one form that the models were trained on.

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

__all__ = ["DOMAINS", "load"]

DOMAINS: tuple[str, ...] = ("code", "math", "translation", "summarisation", "chat", "edits")


def load(domain: str) -> list[str]:
    """Return the prompts of one domain, in a fixed order."""
    if domain not in DOMAINS:
        raise ValueError(f"no prompts for {domain!r}: the domains are {', '.join(DOMAINS)}")
    text = resources.files(__package__).joinpath(f"{domain}.json").read_text(encoding="utf-8")
    prompts: list[str] = json.loads(text)
    return prompts
