"""A neural drafter's state for each tag: its tokens, and where their keys are.

    |<- num_cached_tokens: their keys are here ->|<- pending: no keys yet ->|<- proposals of the last call ->|
    |<----------------------------- num_tokens ---------------------------->|<- `written` of them have keys  |

Knows no tensors: it only tells the caller which slots to copy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from covey.contracts.types import NO_INTS, NO_STATES, Floats, Ints, Words
from covey.kv.sequences import Sequence
from covey.noise.noise import Index

UNKNOWN = 0  # stands for tokens that a drafter does not have
T = TypeVar("T", Ints, Index)


@dataclass(slots=True, eq=False)
class Session:
    """The state of one tag."""

    sequence: Sequence
    rejection: bool
    vocab_size: int  # its draws have lower ids
    tokens: list[int] = field(default_factory=list)  # proposals of the last call
    parents: list[int] = field(default_factory=list)
    written: int = 0  # proposals with keys, stored after the last token's
    states: Words = field(default_factory=lambda: NO_STATES)  # a head's, of its last tokens, including all unread ones

    @property
    def num_tokens(self) -> int:
        return self.sequence.num_tokens

    @property
    def pending(self) -> int:
        """Return the number of tokens to compute: those without keys, and always the last one for its logits."""
        return max(1, self.unread)

    @property
    def unread(self) -> int:
        """Return the number of tokens without keys."""
        return self.sequence.num_tokens - self.sequence.num_cached_tokens

    @property
    def read(self) -> int:
        """Return how many tokens from the start have keys."""
        return self.sequence.num_cached_tokens

    def keep(self, count: int) -> None:
        """Keep only the first `count` tokens."""
        sequence = self.sequence
        if count == sequence.num_tokens:
            return
        self.written, gone = 0, sequence.num_tokens - count
        sequence.num_tokens = count
        sequence.num_cached_tokens = min(sequence.num_cached_tokens, count)
        self.states = self.states[: max(0, len(self.states) - gone)]

    def append(self, tokens: Ints) -> tuple[Ints, Ints]:
        """Append new tokens. Those that the last call proposed have keys already. Return the slots to copy from and
        to."""
        sequence = self.sequence
        path = self._accepted(tokens.tolist()) if self.written and not self.unread else []
        base = sequence.num_cached_tokens
        sequence.num_cached_tokens += len(path)
        self.written = 0
        sequence.append(tokens)
        if path == list(range(len(path))):
            return NO_INTS, NO_INTS
        return sequence.slots[base + np.asarray(path, np.int32)], sequence.slots[base : base + len(path)]

    def add_states(self, states: Words, most: int) -> bool:
        """Add the states of the newest tokens; keep those of all unread tokens and of at least `most`. Return whether
        every token that may have to be read has its state, including the last one."""
        kept = self.states[max(0, len(self.states) + len(states) - max(most, self.unread)) :]
        parts = [part for part in (kept, states) if len(part)]
        self.states = np.concatenate(parts) if parts else NO_STATES
        return len(self.states) >= min(self.num_tokens, self.pending)

    def states_of(self, start: int, count: int) -> Floats:
        """Return the states of `count` tokens, beginning `start` tokens before the end of the text."""
        first = len(self.states) - start
        words = self.states[first : first + count].astype(np.uint32)
        return (words << 16).view(np.float32)

    def _accepted(self, tokens: list[int]) -> list[int]:
        """Return the nodes of the last call on the path of `tokens`, as far as they have keys."""
        path: list[int] = []
        nodes: dict[tuple[int | None, int], int]
        nodes = dict(zip(zip(self.parents, self.tokens), range(self.written)))
        at: int | None = -1
        for token in tokens:
            at = nodes.get((at, token))
            if at is None:
                break
            path.append(at)
        return path


def readable(tokens: T, vocab_size: int) -> T:
    """Return a text's tokens for a drafter of `vocab_size` tokens. Its target may have more."""
    return np.where(tokens < vocab_size, tokens, UNKNOWN)
