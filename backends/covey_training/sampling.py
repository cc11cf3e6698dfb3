"""A sample of a target, as tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Sample:
    """A prompt's tokens and the target's continuation, which ends with an end token or at the limit."""

    prompt: list[int]
    continuation: list[int]


def ends_of(config: Any) -> tuple[int, ...]:
    """Return the tokens that end a text, from a model's configuration: one, several or none."""
    ends = config.eos_token_id
    return () if ends is None else (ends,) if isinstance(ends, int) else tuple(ends)
