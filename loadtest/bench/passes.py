"""Makes single passes of a model, to be timed: so many rows, each with so many keys. Knows no model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from covey.models.lanes import Lanes, Pass

BLOCK_SIZE = 16


@dataclass(frozen=True)
class PassCase:
    rows: int
    context: int
    tokens: int = 1  # of a row

    @property
    def name(self) -> str:
        return f"{self.rows} x {self.tokens} at {self.context}"

    def work(self, blocks: int, seed: int, nowhere: int = -1, block_size: int = BLOCK_SIZE) -> Pass:
        """Return the pass, over keys scattered among so many blocks; it is kept nowhere. It has logits of each row's
        last token."""
        size, each = self.rows * self.tokens, -(-self.context // block_size)
        ids = np.random.default_rng(seed).permutation(blocks)[: self.rows * each]
        lanes = Lanes(
            np.arange(self.rows + 1, dtype=np.int32) * np.int32(self.tokens),
            np.full(self.rows, self.context, np.int32),
            ids.reshape(self.rows, each).astype(np.int32),
        )
        positions = np.tile(np.arange(self.context - self.tokens, self.context, dtype=np.int32), self.rows)
        slots = np.full(size, nowhere, np.int32)
        return Pass(np.zeros(size, np.int32), positions, slots, lanes, lanes.offsets[1:] - 1)
