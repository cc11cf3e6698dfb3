"""A head of one layer with a model's interface: logits over the whole vocabulary of its target."""

from __future__ import annotations

import numpy as np

from covey.contracts.types import Floats
from covey.models.heads import Head
from covey.models.lanes import Pass
from covey.models.native.model import NativeModel


class HeadModel(NativeModel):
    """Also reads a state for each token of a pass. Tokens outside the head's own vocabulary cannot be drafted."""

    def __init__(self, head: Head, *, dtype: str, blocks: int, threads: int, max_pass_tokens: int, most_blocks: int):
        self._columns = head.ids
        self._target_vocab = head.target_vocab
        super().__init__(
            head.of,
            dtype=dtype,
            blocks=blocks,
            threads=threads,
            numerics="fast",
            max_pass_tokens=max_pass_tokens,
            most_blocks=most_blocks,
            columns=head.ids,
        )
        self.vocab_size = head.target_vocab

    @property
    def width(self) -> int:
        """Return how many numbers a state has."""
        return self._passes.of.width

    def forward(self, work: Pass) -> Floats:
        logits = super().forward(work)
        if self._columns is None:
            return logits
        found: Floats = np.full((len(logits), self._target_vocab), -np.inf, np.float32)
        found[:, self._columns] = logits
        return found
