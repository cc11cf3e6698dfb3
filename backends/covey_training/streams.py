"""Endless token streams over documents; a cursor is the only state, so that resuming needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer


def encode(tokenizer: Tokenizer, documents: Sequence[str], end_of_text: int) -> list[NDArray[np.uint16]]:
    """Return the documents' tokens, each ended by the end-of-text token."""
    return [np.array([*e.ids, end_of_text], np.uint16) for e in tokenizer.encode_batch(list(documents))]


class Stream:
    """Documents in a new order every epoch, concatenated without end."""

    def __init__(self, documents: Sequence[NDArray[np.uint16]], seed: int) -> None:
        if not documents:
            raise ValueError("a stream needs at least one document")
        self.documents = documents
        self.seed = seed
        self.tokens = sum(len(document) for document in documents)
        self._epoch = -1
        self._order: NDArray[np.uint16] = np.empty(0, np.uint16)

    def read(self, cursor: int, count: int) -> NDArray[np.int64]:
        """Return `count` tokens from position `cursor` of the endless stream."""
        parts: list[NDArray[np.uint16]] = []
        while count > 0:
            epoch, offset = divmod(cursor, self.tokens)
            part = self._shuffled(epoch)[offset : offset + count]
            parts.append(part)
            cursor += len(part)
            count -= len(part)
        return np.concatenate(parts).astype(np.int64)

    def _shuffled(self, epoch: int) -> NDArray[np.uint16]:
        if epoch != self._epoch:
            order = np.random.default_rng([self.seed, epoch]).permutation(len(self.documents))
            self._order = np.concatenate([self.documents[index] for index in order])
            self._epoch = epoch
        return self._order


class Mixture:
    """Batches to which the domains in `turns` add a row each by turns, a domain that is named twice two: by default
    equal shares; `cursors` is all that a checkpoint must keep."""

    def __init__(self, streams: Mapping[str, Stream], turns: Sequence[str] = ()) -> None:
        self.streams = streams
        self.turns = turns or [*streams]
        self.cursors = dict.fromkeys(streams, 0)
        self.rows = 0

    def state(self) -> dict[str, object]:
        return {"cursors": dict(self.cursors), "rows": self.rows}

    def restore(self, cursors: Mapping[str, int], rows: int) -> None:
        self.cursors = dict(cursors)
        self.rows = rows

    def batch(self, rows: int, length: int) -> torch.Tensor:
        """Return (rows, length + 1) tokens, the domains taking turns row by row; advance the cursors."""
        taken = []
        for _ in range(rows):
            taken.append(self.take(self.turns[self.rows % len(self.turns)], length))
            self.rows += 1
        return torch.from_numpy(np.stack(taken))

    def take(self, domain: str, length: int) -> NDArray[np.int64]:
        """Return the next `length` tokens and the one after them, where the next call begins; advance the cursor."""
        tokens = self.streams[domain].read(self.cursors[domain], length + 1)
        self.cursors[domain] += length
        return tokens
