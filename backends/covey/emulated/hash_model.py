"""The language model of emulated devices: a hash. After any tokens its distribution is a single token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MASK = (1 << 64) - 1
GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
NEXT = 0x5DEECE66D
States = npt.NDArray[np.uint64]
Tokens = npt.NDArray[np.int64]


def mix(value: int) -> int:
    """Return 64 well mixed bits (the finaliser of splitmix64)."""
    value = (value + GOLDEN) & MASK
    value = ((value ^ (value >> 30)) * FIRST) & MASK
    value = ((value ^ (value >> 27)) * SECOND) & MASK
    return value ^ (value >> 31)


def mix_all(values: States) -> States:
    """Return `mix` of each value."""
    values = values + np.uint64(GOLDEN)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(FIRST)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(SECOND)
    return values ^ (values >> np.uint64(31))


@dataclass(frozen=True, slots=True)
class HashModel:
    """The language model. Its tokens are `low..vocab_size - 1`, so it never emits ids below `low` (ends, controls). A
    method with a plural name takes and returns arrays."""

    vocab_size: int
    low: int = 0

    def state(self, tokens: Sequence[int], start: int = 0) -> int:
        """Return the hash of `start`, the state of all earlier tokens, and `tokens`."""
        for token in tokens:  # `mix` written out: prompts are long
            value = ((start ^ (token + 1)) + GOLDEN) & MASK
            value = ((value ^ (value >> 30)) * FIRST) & MASK
            value = ((value ^ (value >> 27)) * SECOND) & MASK
            start = value ^ (value >> 31)
        return start

    def states(self, tokens: Tokens, starts: States) -> States:
        """Return each state after one more token."""
        return mix_all(starts ^ (tokens + 1).astype(np.uint64))

    def next(self, state: int) -> int:
        """Return the next token."""
        return self.low + mix(state ^ NEXT) % (self.vocab_size - self.low)

    def nexts(self, states: States) -> Tokens:
        drawn = mix_all(states ^ np.uint64(NEXT)) % np.uint64(self.vocab_size - self.low)
        return drawn.astype(np.int64) + self.low

    def luck(self, state: int, salt: int) -> float:
        """Return a number in [0, 1) that depends on the tokens so far and on the salt."""
        return mix(state ^ mix(salt)) / (MASK + 1)

    def lucks(self, states: States, salt: int) -> npt.NDArray[np.float64]:
        return mix_all(states ^ np.uint64(mix(salt))).astype(np.float64) / (MASK + 1)
