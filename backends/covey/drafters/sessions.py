"""A neural drafter's state of each tag: its tokens, and which of their keys are where.

    |<- num_cached_tokens: their keys are here ->|<- pending: no keys yet ->|<- proposals of the last call ->|
    |<----------------------------- num_tokens ---------------------------->|<- `written` of them have keys  |

Knows no tensors: what to copy is given back to the caller.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from covey.contracts.types import NO_INTS, NO_STATES, Floats, Ints, Words
from covey.kv.sequences import Sequence
from covey.noise.noise import Index

UNKNOWN = 0  # the token as which a drafter reads all that it lacks
T = TypeVar("T", Ints, Index)


@dataclass(slots=True, eq=False)
class Session:
    """The state of one tag."""

    sequence: Sequence
    rejection: bool
    tokens: list[int] = field(default_factory=list)  # what the last call proposed
    parents: list[int] = field(default_factory=list)
    written: int = 0  # how many of those have keys, behind the last token's
    drawn: int = 0  # position of the first of them
    states: Words = field(default_factory=lambda: NO_STATES)  # a head's, of its last tokens, at least of the unread

    @property
    def num_tokens(self) -> int:
        return self.sequence.num_tokens

    @property
    def pending(self) -> int:
        """Return the number of tokens without keys; the last token counts always, for its logits are needed."""
        return max(1, self.unread)

    @property
    def unread(self) -> int:
        """Return the number of tokens without keys."""
        return self.sequence.num_tokens - self.sequence.num_cached_tokens

    @property
    def read(self) -> int:
        """Return how many of the first tokens have keys."""
        return self.sequence.num_cached_tokens

    def keep(self, count: int) -> None:
        """Forget all tokens but the first `count`."""
        sequence = self.sequence
        if count == sequence.num_tokens:
            return
        self.written, gone = 0, sequence.num_tokens - count
        if count < self.drawn:
            self.tokens = []
        sequence.num_tokens = count
        sequence.num_cached_tokens = min(sequence.num_cached_tokens, count)
        self.states = self.states[: max(0, len(self.states) - gone)]

    def append(self, tokens: Ints) -> tuple[Ints, Ints]:
        """Take new tokens. As far as the last call proposed them their keys are known: the slots to copy from and to
        are returned."""
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
        """Take the states of the tokens that were told last; those of `most` tokens are kept, and of all unread.
        Whether no token that may have to be read lacks its state: the last one may, for its logits."""
        kept = self.states[max(0, len(self.states) + len(states) - max(most, self.unread)) :]
        parts = [part for part in (kept, states) if len(part)]
        self.states = np.concatenate(parts) if parts else NO_STATES
        return len(self.states) >= min(self.num_tokens, self.pending)

    def states_of(self, start: int, count: int) -> Floats:
        """Return the states of so many tokens, the first of them `start` tokens before the text's end."""
        first = len(self.states) - start
        words = self.states[first : first + count].astype(np.uint32)
        return (words << 16).view(np.float32)

    def drew(self, tokens: list[int]) -> None:
        """Note the tokens that the text read so far draws for the next position, if any; the last call's proposals are
        done."""
        self.tokens, self.parents, self.written, self.drawn = tokens, [-1] * len(tokens), 0, self.read

    def own(self) -> list[int]:
        """Return the drafter's own draws of the positions from `drawn` on. What it proposed is its draw as long as the
        text has what it proposed before; of a tree the first node alone is known to be."""
        is_chain = self.parents == list(range(-1, len(self.tokens) - 1))
        proposed = self.tokens if is_chain else self.tokens[:1]
        text = self.sequence.tokens[self.drawn : self.drawn + len(proposed)].tolist()
        count = next((at for at, (own, token) in enumerate(zip(proposed, text)) if own != token), len(text))
        return proposed[: count + 1]

    def _accepted(self, tokens: list[int]) -> list[int]:
        """Return the nodes of the last call that `tokens` runs along, as far as they have keys."""
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
    """Return the tokens of a text as a drafter of `vocab_size` tokens reads them: its target may have more."""
    return np.where(tokens < vocab_size, tokens, UNKNOWN)
