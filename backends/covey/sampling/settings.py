"""Sampling settings of all open requests as arrays, one slot per request, so that a batch's settings are one gather.

Knows nothing of tags or tokens. Requests are validated before they come here.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from covey.sampling.noise import Index, Reals, Words, seed_words
from covey.types import Rule, Sampling

_NUMBERS = {
    "temperature": np.float64,  # 0: greedy
    "top_k": np.int64,
    "top_p": np.float64,
    "log_min_p": np.float64,  # -inf: off
    "repetition_penalty": np.float64,
    "presence_penalty": np.float64,
    "frequency_penalty": np.float64,
    "min_tokens": np.int64,
    "num_prompt": np.int64,
    "seed": np.uint64,  # already spread by `seed_words`
    "logprobs": np.bool_,
    "penalised": np.bool_,  # the draw depends on the tokens before it
    "history": np.bool_,  # ... and on more than how many they are
    "truncated": np.bool_,  # top_k, top_p or min_p leave tokens out
    "rejection": np.bool_,  # verified by that rule
}


class SettingsTable:
    """One slot per open request; slots are reused after `remove`. Columns are public, to be read only."""

    temperature: Reals
    top_k: Index
    top_p: Reals
    log_min_p: Reals
    repetition_penalty: Reals
    presence_penalty: Reals
    frequency_penalty: Reals
    min_tokens: Index
    num_prompt: Index
    seed: Words
    logprobs: npt.NDArray[np.bool_]
    penalised: npt.NDArray[np.bool_]
    history: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    rejection: npt.NDArray[np.bool_]

    def __init__(self, capacity: int = 64) -> None:
        for name, kind in _NUMBERS.items():
            setattr(self, name, np.zeros(capacity, kind))
        self.samplings: list[Sampling | None] = [None] * capacity
        self._free = list(range(capacity - 1, -1, -1))

    def __len__(self) -> int:
        return len(self.samplings) - len(self._free)

    def add(self, sampling: Sampling, num_prompt: int) -> int:
        """Take a slot for a request whose first `num_prompt` tokens are its prompt."""
        if not self._free:
            self._grow()
        slot = self._free.pop()
        s = sampling
        self.samplings[slot] = s
        self.temperature[slot] = 0.0 if s.greedy else s.temperature
        self.top_k[slot] = 1 if s.min_p >= 1.0 else s.top_k  # of tokens as likely as the best, the lowest id alone
        self.top_p[slot] = s.top_p
        self.log_min_p[slot] = math.log(s.min_p) if s.min_p > 0 else -math.inf
        self.repetition_penalty[slot] = s.repetition_penalty
        self.presence_penalty[slot] = s.presence_penalty
        self.frequency_penalty[slot] = s.frequency_penalty
        self.min_tokens[slot] = s.min_tokens
        self.num_prompt[slot] = num_prompt
        self.seed[slot : slot + 1] = seed_words(np.array([s.seed & 0xFFFFFFFFFFFFFFFF], np.uint64))
        self.logprobs[slot] = s.logprobs
        self.penalised[slot] = s.has_penalties
        self.history[slot] = s.has_penalties and bool(
            s.bad_words or (s.repetition_penalty, s.presence_penalty, s.frequency_penalty) != (1.0, 0.0, 0.0)
        )
        self.rejection[slot] = s.rule is Rule.REJECTION
        self.truncated[slot] = not s.greedy and (s.top_k > 0 or s.top_p < 1.0 or s.min_p > 0.0)
        return slot

    def remove(self, slot: int) -> None:
        """Give a slot back."""
        if self.samplings[slot] is None:
            raise KeyError(f"slot {slot} is not in use")
        self.samplings[slot] = None
        self._free.append(slot)

    def sampling(self, slot: int) -> Sampling:
        """The settings that were added."""
        sampling = self.samplings[slot]
        if sampling is None:
            raise KeyError(f"slot {slot} is not in use")
        return sampling

    def _grow(self) -> None:
        size = len(self.samplings)
        for name in _NUMBERS:
            column = getattr(self, name)
            setattr(self, name, np.concatenate((column, np.zeros_like(column))))
        self.samplings += [None] * size
        self._free = list(range(2 * size - 1, size - 1, -1))
