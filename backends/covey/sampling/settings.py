"""Sampling settings of all open requests as arrays, one row per request. One gather returns a batch's settings.

Knows nothing of tags or tokens. Requests are validated before they come here.
"""

from __future__ import annotations

import math

import numpy as np

from covey.contracts.types import Rule, Sampling
from covey.noise.noise import Index, Reals, Words, seed_words


class SettingsTable:
    """The settings of open requests, a row for each; rows are reused after `remove`. Columns are read-only."""

    def __init__(self, capacity: int = 64) -> None:
        self.temperature: Reals = np.zeros(capacity)  # 0: greedy
        self.top_k: Index = np.zeros(capacity, np.int64)
        self.top_p: Reals = np.zeros(capacity)
        self.log_min_p: Reals = np.zeros(capacity)  # -inf: off
        self.repetition_penalty: Reals = np.zeros(capacity)
        self.presence_penalty: Reals = np.zeros(capacity)
        self.frequency_penalty: Reals = np.zeros(capacity)
        self.min_tokens: Index = np.zeros(capacity, np.int64)
        self.num_prompt: Index = np.zeros(capacity, np.int64)
        self.seed: Words = np.zeros(capacity, np.uint64)  # already spread by `seed_words`
        self.logprobs = np.zeros(capacity, np.bool_)
        self.top_logprobs: Index = np.zeros(capacity, np.int64)
        self.prompt_logprobs = np.zeros(capacity, np.bool_)
        self.biased = np.zeros(capacity, np.bool_)  # logits get a bias
        self.constrained = np.zeros(capacity, np.bool_)  # a grammar limits the tokens
        self.penalised = np.zeros(capacity, np.bool_)  # the draw depends on the tokens before it
        self.history = np.zeros(capacity, np.bool_)  # ... not only on their number
        self.truncated = np.zeros(capacity, np.bool_)  # top_k, top_p or min_p leave tokens out
        self.rejection = np.zeros(capacity, np.bool_)  # verified by the rejection rule
        self.samplings: list[Sampling | None] = [None] * capacity
        self.biases: dict[int, tuple[Index, Reals]] = {}  # tokens and what is added to each, by row
        self._free = list(range(capacity - 1, -1, -1))

    def __len__(self) -> int:
        return len(self.samplings) - len(self._free)

    def add(self, sampling: Sampling, num_prompt: int) -> int:
        """Add a request, whose first `num_prompt` tokens are its prompt, and return its row."""
        if not self._free:
            self._grow()
        row = self._free.pop()
        s = sampling
        self.samplings[row] = s
        self.temperature[row] = 0.0 if s.greedy else s.temperature
        self.top_k[row] = 1 if s.min_p >= 1.0 else s.top_k  # of tokens tied for the best, only the lowest id
        self.top_p[row] = s.top_p
        self.log_min_p[row] = math.log(s.min_p) if s.min_p > 0 else -math.inf
        self.repetition_penalty[row] = s.repetition_penalty
        self.presence_penalty[row] = s.presence_penalty
        self.frequency_penalty[row] = s.frequency_penalty
        self.min_tokens[row] = s.min_tokens
        self.num_prompt[row] = num_prompt
        self.seed[row : row + 1] = seed_words(np.array([s.seed & 0xFFFFFFFFFFFFFFFF], np.uint64))
        self.logprobs[row] = s.logprobs or s.prompt_logprobs
        self.prompt_logprobs[row] = s.prompt_logprobs
        self.top_logprobs[row] = s.top_logprobs
        self.biased[row] = bool(s.logit_bias)
        if s.logit_bias:  # make the arrays once, not at each draw
            tokens, values = zip(*s.logit_bias)
            self.biases[row] = np.array(tokens, np.int64), np.array(values, np.float64)
        self.constrained[row] = bool(s.grammar)
        self.penalised[row] = s.has_penalties
        self.history[row] = s.has_penalties and bool(
            s.bad_words or (s.repetition_penalty, s.presence_penalty, s.frequency_penalty) != (1.0, 0.0, 0.0)
        )
        self.rejection[row] = s.rule is Rule.REJECTION
        self.truncated[row] = not s.greedy and (s.top_k > 0 or s.top_p < 1.0 or s.min_p > 0.0)
        return row

    def remove(self, row: int) -> None:
        """Free a row."""
        if self.samplings[row] is None:
            raise KeyError(f"row {row} is not in use")
        self.samplings[row] = None
        self.prompt_logprobs[row] = False
        self.biases.pop(row, None)
        self._free.append(row)

    def sampling(self, row: int) -> Sampling:
        """Return a row's settings as they were added."""
        sampling = self.samplings[row]
        if sampling is None:
            raise KeyError(f"row {row} is not in use")
        return sampling

    def _grow(self) -> None:
        size = len(self.samplings)
        for name, column in vars(self).items():
            if isinstance(column, np.ndarray):
                setattr(self, name, np.concatenate((column, np.zeros_like(column))))
        self.samplings += [None] * size
        self._free = list(range(2 * size - 1, size - 1, -1))
