"""Is a token's result the same bits whatever else is in its pass?

Matrix libraries choose their order of summation by the number of rows, so that is a question for the hardware at
hand, asked when a model is loaded: of the model's own matrices over all row counts that passes are padded to, and of
whole passes in several compositions. Where few rows are the trouble, passes padded to a multiple of some granule may be
the answer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from covey.runtime.attention import Shape, Tiling, attend, plan_lanes
from covey.runtime.lanes import Lanes, Pass, chain_slots
from covey.runtime.product import padded
from covey.types import Ints

GRANULES = (1, 2, 4, 8, 12, 16)  # row counts that passes are padded to multiples of, in the order they are tried
_SMALL_PRODUCT = 4096  # multiplications; PyTorch hands products of 16 ** 3 or fewer to another library
_LONGEST = 4096  # keys tried
_SECONDS = 1.0  # what the sweep over row counts may take for each matrix
_AT_LEAST = 5  # counts of each matrix that are tried however long they take

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Matrix:
    """One linear map of a model, to stand for all of its shape."""

    apply: Callable[[torch.Tensor], torch.Tensor]
    width: int
    count: int  # of weights


def tilings(
    matrices: Sequence[Matrix],
    shape: Shape,
    limit: int,
    dtype: torch.dtype,
    device: torch.device,
    agree: Callable[[bool], bool] = bool,
) -> Iterator[Tiling]:
    """What may make passes invariant, the cheapest first; several ranks of one model must `agree` on it."""
    keys = 32
    while shape.heads * shape.head_dim * keys <= _SMALL_PRODUCT and keys < 1024:
        keys *= 2
    for place, granule in enumerate(linear_granules(matrices, limit, dtype, device, agree)):
        if place == 0:
            yield Tiling(granule, keys)
        yield Tiling(granule, max(keys, 128), True)


def linear_granules(
    matrices: Sequence[Matrix],
    limit: int,
    dtype: torch.dtype,
    device: torch.device,
    agree: Callable[[bool], bool] = bool,
) -> Iterator[int]:
    """Granules under which every matrix gives a row the same bits for all counts that up to `limit` rows are padded
    to, as far as there is time to try them."""
    least = min(matrix.count for matrix in matrices)
    for granule in GRANULES:
        if granule * least <= _SMALL_PRODUCT:
            continue
        counts = sorted({padded(count, granule) for count in range(1, limit + 1)})
        if agree(all(_invariant(matrix, counts, dtype, device) for matrix in matrices)):
            yield granule


def _invariant(matrix: Matrix, counts: Sequence[int], dtype: torch.dtype, device: torch.device) -> bool:
    until = time.monotonic() + _SECONDS
    most = counts[-1]
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(most, matrix.width, generator=generator).to(device, dtype)
    expected = matrix.apply(rows)
    for place, count in enumerate(counts):
        if place >= _AT_LEAST and time.monotonic() > until:
            shape = f"{matrix.count // matrix.width} x {matrix.width}"
            log.info("row counts of a %s matrix: %d of %d tried, up to %d rows", shape, place, len(counts), count - 1)
            break
        places = 64 if count <= 4 else 8 if count <= 33 else 1  # roundings differ in few rows: few rows, many trials
        for start in range(0, most - count + 1, max(1, most // places)):
            found = matrix.apply(rows[start : start + count].clone())
            if not torch.equal(found, expected[start : start + count]):
                return False
    return True


def attention_agrees(shape: Shape, tiling: Tiling, positions: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether queries' attention is the same bits alone, among their row's other queries and beside other rows."""
    longest = min(positions, _LONGEST)
    trial = _Trial(shape, tiling, longest, dtype, device)
    for length in (9, 33, 100, 257, 300, 700, 1100, 2000, 3000, longest):
        if length > longest:
            continue
        farther = min(length + 1000, longest)
        seen = min(length, 4)  # the last queries of the row, each alone
        alone = torch.cat([trial.run([1], [length - back], 0, back) for back in range(seen - 1, -1, -1)])
        for counts, lengths, first in (
            ([min(length, 5)], [length], 0),
            ([min(length, 100)], [length], 0),
            ([4, 1, 1], [length, farther, length], 0),
            ([4] * 9, [length] * 9, 7),
            ([3, 4, 3, 3], [farther, length, length, length], 1),
        ):
            if not torch.equal(trial.run(counts, lengths, first)[-seen:], alone):
                return False
    return True


class _Trial:
    """Random keys, values and queries of one layer. Query i from the end of a row is the same in every run."""

    def __init__(
        self, shape: Shape, tiling: Tiling, longest: int, dtype: torch.dtype, device: torch.device, block_size: int = 16
    ) -> None:
        self._shape, self._tiling, self._dtype, self._device, self._block_size = (
            shape,
            tiling,
            dtype,
            device,
            block_size,
        )
        blocks = -(-longest // block_size)
        generator = torch.Generator().manual_seed(2)

        def draw(*size: int) -> torch.Tensor:
            return torch.randn(*size, generator=generator).to(device, dtype)

        self._pool = draw(2 * shape.kv_heads, blocks * block_size, shape.head_dim)
        self._queries = draw(256, shape.heads, shape.head_dim)
        self._table = np.random.default_rng(2).permutation(blocks).astype(np.int32)

    def run(self, counts: list[int], lengths: list[int], first: int, back: int = 0) -> torch.Tensor:
        """Results of lane `first`, which is the row in question less its last `back` tokens; the others are others."""
        shape = self._shape
        lanes = Lanes(
            offsets=np.append(0, np.cumsum(counts)).astype(np.int32),
            lengths=np.array(lengths, np.int32),
            tables=np.stack([np.roll(self._table, lane - first) for lane in range(len(counts))]),
        )
        pick = np.arange(sum(counts)) % 100
        mine = slice(int(lanes.offsets[first]), int(lanes.offsets[first + 1]))
        pick[mine] = np.arange(256 - back - counts[first], 256 - back)
        plan = plan_lanes(
            lanes,
            len(pick),
            shape=shape,
            block_size=self._block_size,
            tiling=self._tiling,
            dtype=self._dtype,
            device=self._device,
        )
        queries = self._queries.index_select(0, torch.from_numpy(pick).to(self._device))
        return attend(plan, queries, self._pool, shape.head_dim**-0.5)[mine]


@dataclass(frozen=True, slots=True)
class Room:
    """What a trial of whole passes may use."""

    vocab: int
    positions: int
    blocks: int
    block_size: int
    limit: int  # tokens per pass
    span: int = 0  # keys after which attention begins another sum: the first row reaches across, if it can


def passes_agree(forward: Callable[[Pass], torch.Tensor], room: Room) -> bool:
    """Whether the same tokens have the same logits in compositions as unlike as the room allows."""
    length = min(72, room.positions, room.limit, room.blocks * room.block_size // 4)
    if length < 4:
        return True
    per_row = -(-length // room.block_size)
    ahead = max(0, room.span - length // 2)  # known tokens of the first row
    if ahead + length > min(room.positions, room.blocks // 2 * room.block_size):
        ahead = 0
    first = -(-(ahead + length) // room.block_size)
    rows = min(9, 1 + (room.blocks - first) // per_row, room.limit // 6 + 1)
    rng = np.random.default_rng(5)
    begin = [ahead] + [0] * (rows - 1)
    texts = [rng.integers(0, room.vocab, start + length).astype(np.int32) for start in begin]
    blocks = rng.permutation(room.blocks).astype(np.int32)
    tables = np.zeros((rows, first), np.int32)
    tables[0] = blocks[:first]
    tables[1:, :per_row] = blocks[first : first + (rows - 1) * per_row].reshape(rows - 1, per_row)

    def run(*steps: tuple[int, int, int]) -> list[torch.Tensor]:
        """Of a row's tokens, counted from the first that is not known."""
        moved = [(row, start + begin[row], stop + begin[row]) for row, start, stop in steps]
        return list(forward(_chains(texts, tables, moved, room.block_size)).split([b - a for _, a, b in steps]))

    for start in range(0, ahead, room.limit):
        run((0, start - ahead, min(start + room.limit, ahead) - ahead))
    whole = [run((row, 0, length))[0] for row in range(rows)]
    half, odd = length // 2, min(5, length - 1)
    trials = [
        [(row, length - 1, length) for row in range(rows)],  # one token each
        [(row, length - odd + row % 3, length - row % 2) for row in range(rows)],  # uneven ends
        [(0, half, length), *((row, length - 1 - row, length - row) for row in range(1, rows))],  # chunk and rows
        [(0, length - 1, length)],
        [(0, length - odd, length)],
        [(0, 0, half)],
        [(0, half, length)],
        [(0, 0, half - 1), *((row, half, min(half + odd, length)) for row in range(1, rows))],
    ]
    for steps in trials:
        used = [step for step in steps if 0 <= step[1] < step[2]]
        while sum(stop - start for _, start, stop in used) > room.limit:
            used.pop()
        for (row, start, stop), found in zip(used, run(*used)):
            if not torch.equal(found, whole[row][start:stop]):
                return False
    return True


def _chains(texts: Sequence[Ints], tables: Ints, steps: Sequence[tuple[int, int, int]], block_size: int) -> Pass:
    sizes = [stop - start for _, start, stop in steps]
    lanes = Lanes(
        offsets=np.append(0, np.cumsum(sizes)).astype(np.int32),
        lengths=np.array([stop for _, _, stop in steps], np.int32),
        tables=tables[[row for row, _, _ in steps]],
    )
    return Pass(
        tokens=np.concatenate([texts[row][start:stop] for row, start, stop in steps]),
        positions=np.concatenate([np.arange(start, stop, dtype=np.int32) for _, start, stop in steps]),
        slots=np.concatenate([chain_slots(tables[row], start, stop, block_size) for row, start, stop in steps]),
        lanes=lanes,
        out=np.arange(sum(sizes), dtype=np.int32),
    )
