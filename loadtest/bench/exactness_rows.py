"""Reads rows of tokens through a paged model in any composition of passes, and compares what is drawn after each
position with what it is when its row is alone: the ids at several temperatures, and their log-probabilities to the bit.

Knows no requests: tokens are given, so that every position of a row can be compared, not only those that are emitted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
import numpy.typing as npt

from covey.contracts.types import Ints, JsonDict, Sampling
from covey.models.lanes import Lanes, Pass, chain_slots
from covey.runtimes.resizing import AnyModel
from covey.sampling.drawing import SettingsTable, draw

TEMPERATURES = (0.0, 1.0)
BANDS = (256, 512, 768, 1024, 1280, 1536, 1792)  # keys that a position sees: where one band ends and the next begins
SIZES = (1, 1, 2, 5, 9, 33, 64, 100, 177, 249)  # of a row's chunk in a mixed pass; none divides another's sum

Step = tuple[int, int, int]
"""Names positions of a row that a pass computes: row, start, stop."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Holds what is drawn after each position, as [positions, temperatures]: its id, and its log-probability's bits."""

    ids: Ints
    bits: Ints


class Rows:
    """Has rows of one model, in blocks of their own that are scattered over its pool, all drawn from with one seed."""

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
        """Read these steps in one pass; return what is drawn in each."""
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
        """Read a whole row with nothing beside it."""
        parts = [self.read([step])[0] for (step,) in in_chunks(row, len(self._rows[row]), chunk)]
        return Seen(np.concatenate([part.ids for part in parts]), np.concatenate([part.bits for part in parts]))


def in_chunks(row: int, length: int, size: int) -> Iterator[list[Step]]:
    """Yield passes that read one row from its beginning."""
    for start in range(0, length, size):
        yield [(row, start, min(start + size, length))]


def in_company(lengths: Sequence[int], limit: int, rng: np.random.Generator) -> Iterator[list[Step]]:
    """Yield passes of up to `limit` tokens that read all rows, in stretches of many sizes and in company that
    changes."""
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

    def add(self, ids: npt.NDArray[np.bool_], bits: npt.NDArray[np.bool_]) -> None:
        self.positions += len(ids)
        self.ids_differing += int(ids.sum())
        self.bits_differing += int(bits.sum())

    def join(self, other: Counts) -> None:
        self.positions += other.positions
        self.ids_differing += other.ids_differing
        self.bits_differing += other.bits_differing


@dataclass(slots=True)
class Differences:
    """Counts what comparisons found: in all, by how many keys a position sees, and by who is in its pass."""

    total: Counts = field(default_factory=Counts)
    by_length: dict[str, Counts] = field(default_factory=lambda: defaultdict(Counts))
    by_company: dict[str, Counts] = field(default_factory=lambda: defaultdict(Counts))

    def compare(self, rows: Rows, expected: Sequence[Seen], passes: Iterable[Sequence[Step]]) -> None:
        """Read the passes and count where a row differs from what is expected of it."""
        for steps in passes:
            for (row, start, stop), found in zip(steps, rows.read(steps)):
                ids = (found.ids != expected[row].ids[start:stop]).any(axis=1)
                bits = (found.bits != expected[row].bits[start:stop]).any(axis=1)
                self.total.add(ids, bits)
                longer = any(other[2] > stop for other in steps)
                self.by_company[company(len(steps) - 1, longer)].add(ids, bits)
                band = np.digitize(np.arange(start, stop) + 1, BANDS)
                for each in np.unique(band).tolist():
                    self.by_length[length_band(each)].add(ids[band == each], bits[band == each])

    def join(self, other: Differences) -> None:
        self.total.join(other.total)
        for mine, theirs in ((self.by_length, other.by_length), (self.by_company, other.by_company)):
            for name, counts in theirs.items():
                mine[name].join(counts)

    def as_json(self) -> JsonDict:
        """Return the counts as JSON, bands in order of what they are of."""
        lengths = [length_band(each) for each in range(len(BANDS) + 1)]
        return {
            **asdict(self.total),
            "by_length": {name: asdict(self.by_length[name]) for name in lengths if name in self.by_length},
            "by_company": {name: asdict(self.by_company[name]) for name in sorted(self.by_company)},
        }


def length_band(index: int) -> str:
    """Return the name of a band of `BANDS`, by its number."""
    low = BANDS[index - 1] if index else 1
    return f"{low} to {BANDS[index] - 1} keys" if index < len(BANDS) else f"{low} keys and more"


def company(others: int, longer: bool) -> str:
    """Return the name of a band of company: so many rows beside, some of them longer or none."""
    if not others:
        return "alone, in other chunks"
    count = "1 to 3" if others < 4 else "4 and more"
    return f"{count} rows beside, {'some longer' if longer else 'none longer'}"
