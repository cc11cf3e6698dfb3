"""Reads rows of tokens through a paged model in any composition of passes. Compares the draw after each position with
that of its row alone: the ids at several temperatures, and the bits of their log-probabilities.

Knows no requests: the tokens are given, so every position of a row can be compared, not only the emitted ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from covey.contracts.types import Ints, Sampling
from covey.models.lanes import Lanes, Pass, chain_slots
from covey.runtimes.resizing import AnyModel
from covey.sampling.drawing import SettingsTable, draw

TEMPERATURES = (0.0, 1.0)
SIZES = (1, 1, 2, 5, 9, 33, 64, 100, 177, 249)  # of a row's chunk in a mixed pass; none divides another's sum

Step = tuple[int, int, int]
"""Names positions of a row that a pass computes: row, start, stop."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Holds the draw after each position, as [positions, temperatures]: its id, and its log-probability's bits."""

    ids: Ints
    bits: Ints


class Rows:
    """Holds rows of one model in separate blocks that are scattered over its pool; all draws use one seed."""

    def __init__(self, model: AnyModel, rows: Sequence[Ints], seed: int = 0) -> None:
        size = model.block_size
        counts = [-(-len(row) // size) for row in rows]
        if sum(counts) > model.blocks:
            raise ValueError(f"the rows need {sum(counts)} blocks, the model has {model.blocks}")
        blocks = np.random.default_rng(seed).permutation(model.blocks).astype(np.int32)
        self._model, self._rows = model, rows
        self._tables = np.zeros((len(rows), max(counts)), np.int32)
        for row, (count, start) in enumerate(zip(counts, np.cumsum([0, *counts]).tolist())):
            self._tables[row, :count] = blocks[start : start + count]
        self._settings = SettingsTable()
        samplings = [Sampling(temperature, seed=1, logprobs=True) for temperature in TEMPERATURES]
        self._slots = [self._settings.add(sampling, 0) for sampling in samplings]

    def read(self, steps: Sequence[Step]) -> list[Seen]:
        """Read these steps in one pass; return the draws of each."""
        sizes = [stop - start for _, start, stop in steps]
        rows = [row for row, _, _ in steps]
        positions = np.concatenate([np.arange(start, stop, dtype=np.int32) for _, start, stop in steps])
        tables = self._tables[rows]
        slots = [
            chain_slots(table, start, stop, self._model.block_size) for table, (_, start, stop) in zip(tables, steps)
        ]
        lanes = Lanes(
            np.append(0, np.cumsum(sizes)).astype(np.int32), np.array([stop for *_, stop in steps], np.int32), tables
        )
        tokens = np.concatenate([self._rows[row][start:stop] for row, start, stop in steps])
        every = np.arange(len(tokens), dtype=np.int32)
        logits = self._model.forward(Pass(tokens, positions, np.concatenate(slots), lanes, every))
        drawn = [draw(logits, self._settings, np.full_like(every, slot), positions + 1) for slot in self._slots]
        ids = np.stack([each.tokens for each in drawn], 1)
        bits = np.stack([each.logprobs.view(np.int32) for each in drawn], 1)
        bounds = np.cumsum(sizes)[:-1]
        return [Seen(*parts) for parts in zip(np.split(ids, bounds), np.split(bits, bounds))]

    def alone(self, row: int, chunk: int) -> Seen:
        """Read a whole row alone."""
        parts = [self.read([step])[0] for (step,) in in_chunks(row, len(self._rows[row]), chunk)]
        return Seen(np.concatenate([part.ids for part in parts]), np.concatenate([part.bits for part in parts]))


def in_chunks(row: int, length: int, size: int) -> Iterator[list[Step]]:
    """Yield passes that read one row from its beginning."""
    for start in range(0, length, size):
        yield [(row, start, min(start + size, length))]


def in_company(lengths: Sequence[int], limit: int, rng: np.random.Generator) -> Iterator[list[Step]]:
    """Yield passes of up to `limit` tokens that read all rows, in stretches of many sizes and in changing
    batches."""
    done = [0] * len(lengths)
    while any(at < length for at, length in zip(done, lengths)):
        steps, left = [], limit
        for row in rng.permutation(len(lengths)).tolist():
            if done[row] == lengths[row] or rng.random() < 0.25:
                continue
            stop = min(done[row] + min(left, int(rng.choice(SIZES))), lengths[row])
            if stop > done[row]:
                steps.append((row, done[row], stop))
                left -= stop - done[row]
                done[row] = stop
        if steps:
            yield steps


@dataclass(slots=True)
class Counts:
    """Counts positions, those of them at which an id differs at some temperature, and those at which a bit does."""

    positions: int = 0
    ids_differing: int = 0
    bits_differing: int = 0

    def compare(self, rows: Rows, expected: Sequence[Seen], passes: Iterable[Sequence[Step]]) -> None:
        """Read the passes and count where a row differs from its expected draws."""
        for steps in passes:
            for (row, start, stop), found in zip(steps, rows.read(steps)):
                self.positions += stop - start
                self.ids_differing += int((found.ids != expected[row].ids[start:stop]).any(axis=1).sum())
                self.bits_differing += int((found.bits != expected[row].bits[start:stop]).any(axis=1).sum())
