"""Invariance: whether a token's result is the same bits in any pass.

Matrix libraries choose their order of summation by the shape of a product, so the answer depends on the machine. A load
tests the model's own matrices over all row counts that passes are padded to. It tests attention over every query count
of lanes, at lengths across the whole range, and whole passes in several compositions (`agreement.py`). If few rows
break invariance, padding to a multiple of some granule may help. If many keys do, short spans of them may.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

from covey.models.attention import AT_ONCE, QUERY_TILE, WORTH_A_GROUP, Shape, Tiling, attend, plan_lanes, weighed
from covey.models.lanes import Lanes
from covey.models.rows import padded

GRANULES = (1, 2, 4, 8, 12, 16)  # of a pass's rows, which are padded to a multiple; in the order they are tried
QUERIES = (1, 2, 4, 8)  # granules of a lane's queries
FEW = (1, 2, 3, 4, 5)  # usual query counts of a lane that decodes
SPANS = (256, 128)  # keys whose values are summed at once, in the order they are tried
_SMALL_PRODUCT = 4096  # multiplications; PyTorch hands products of at most 16 ** 3 to another library
_SECONDS = 1.0  # for the sweep over row counts of each matrix, and for one over long contexts
_AT_LEAST = 5  # row counts of each matrix, and long contexts, that are tried however long they take
_LANES = 32  # in a trial of products; fewer if they have many results
_RESULTS = 20_000  # compared for each shape; one in thousands may differ
_RESULTS_OF_MATRIX = 1_000_000  # compared for each count of up to _MANY rows: AMX sums one in 40,000 otherwise
_MANY = 33  # rows; of larger counts, only some are tried with more than one draw of rows
FAR = 24  # lengths beyond two spans to try, if there is time
FAR_QUERIES = (*FEW, 16, QUERY_TILE)  # query counts at those lengths

log = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Matrix:
    """A map of a model's rows, usually linear, that stands for all maps of its shape."""

    apply: Callable[[torch.Tensor], torch.Tensor]
    width: int
    count: int  # number of weights


def attention_tilings(shape: Shape, block_size: int = 16) -> Iterator[Tiling]:
    """Yield the tilings that may make attention invariant, the cheapest first. Key counts are padded to
    multiples of the block size, and spans are multiples of that padding."""
    least = 32
    while shape.heads * shape.head_dim * least <= _SMALL_PRODUCT and least < 1024:
        least *= 2
    least = math.lcm(least, block_size)
    for queries in QUERIES:
        for span in SPANS:
            yield Tiling(queries=queries, keys=least, span=max(1, span // least) * least)
        widest = max(1, SPANS[-1] // least) * least
        yield Tiling(queries=queries, keys=widest, span=widest)


def linear_granules(
    matrices: Sequence[Matrix],
    limit: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Iterator[int]:
    """Yield granules under which every matrix gives a row the same bits for all row counts that up to `limit` rows are
    padded to. Counts that there is no time to try are assumed to agree."""
    least = min(matrix.count for matrix in matrices)
    for granule in GRANULES:
        if granule * least <= _SMALL_PRODUCT:
            continue
        counts = sorted({padded(count, granule) for count in range(1, limit + 1)})
        if all(_invariant(matrix, counts, dtype, device) for matrix in matrices):
            yield granule


def _invariant(matrix: Matrix, counts: Sequence[int], dtype: torch.dtype, device: torch.device) -> bool:
    until = time.thread_time() + _SECONDS
    most, columns, tried = counts[-1], max(1, matrix.count // matrix.width), 0
    generator = torch.Generator().manual_seed(1)
    again = [count for at, count in enumerate(counts) if count <= _MANY or at % 8 == 0 or count == most]
    while tried < _RESULTS_OF_MATRIX:
        rows = torch.randn(most, matrix.width, generator=generator).to(device, dtype)
        expected = matrix.apply(rows)
        for place, count in enumerate(again if tried else counts):
            if place >= _AT_LEAST and time.thread_time() > until:
                if not tried:
                    shape = f"{columns} x {matrix.width}"
                    log.info("a %s matrix: tried %d of %d row counts, up to %d", shape, place, len(counts), count - 1)
                return True
            places = 64 if count <= 4 else 8 if count <= _MANY else 1  # few rows differ in few places: try more places
            for start in range(0, most - count + 1, count if tried else max(1, most // places)):
                alone = matrix.apply(rows[start : start + count].clone())
                if not torch.equal(alone, expected[start : start + count]):
                    return False
        tried += most * columns
    return True


def attention_agreement(
    shape: Shape,
    tiling: Tiling,
    positions: int,
    dtype: torch.dtype,
    device: torch.device,
    *,
    block_size: int = 16,
    seed: int = 2,
    least: int = 1,
    seconds: float = _SECONDS,
) -> int:
    """Return how many results were compared, at least `least`, or 0 if one differs. All queries of a lane together must
    give the same bits as each alone. Products of every shape up to a span are tried. Whole attention, next to other
    lanes, is tried at every padded length up to two spans, and at a sample of longer ones. The longer ones are tried
    twice, for `seconds` seconds each time."""
    if not _products_agree(shape, tiling, positions, dtype, device, seed, seconds):
        return 0
    trial = _Trial(shape, tiling, positions, dtype, device, seed, block_size)
    companies = _Companies(tiling, positions, np.random.default_rng(seed))
    while trial.compared < least:
        if not all(trial.holds(*lanes) for lanes in companies.near()):
            return 0
        if not all(trial.holds(*lanes) for lanes in _in_time(companies.far(), seconds)):
            return 0
    return trial.compared


def _in_time(cases: Iterable[_T], seconds: float) -> Iterator[_T]:
    """Yield a few cases, and more while there is time."""
    until = time.thread_time() + seconds
    for place, case in enumerate(cases):
        if place >= _AT_LEAST and time.thread_time() > until:
            break
        yield case


def _far(longest: int, shortest: int, unit: int) -> list[int]:
    """Return some lengths between the two, multiples of `unit`: the longest, then the others from the shortest up.
    Short ones cost least and differ most from the longest. They are closer together, like the lengths at which
    libraries change their algorithm."""
    lengths = np.unique(np.geomspace(max(1, shortest // unit), longest // unit, FAR).astype(np.int64)) * unit
    return [int(lengths[-1]), *lengths[:-1].tolist()]


def _products_agree(
    shape: Shape,
    tiling: Tiling,
    positions: int,
    dtype: torch.dtype,
    device: torch.device,
    seed: int,
    seconds: float,
) -> bool:
    """Return whether a query's result has the same bits for every query count of a lane, and for every key count up to
    a span. For few queries, also try a sample of the numbers of spans."""
    generator = torch.Generator().manual_seed(seed)
    span, dim = max(tiling.span, tiling.keys), shape.head_dim

    def draw(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator).to(device, dtype)

    def agree(lanes: int, counts: Sequence[int], longest: int, widths: Iterable[int]) -> bool:
        most = counts[-1] * shape.share
        queries, kv = draw(lanes, most, dim), draw(2, lanes, longest, dim)
        for keys in widths:
            mask = torch.zeros(lanes, most, longest, dtype=dtype, device=device)
            mask[:, :, keys:] = -torch.inf
            whole = weighed(queries, kv, mask, dim**-0.5, 0.0, tiling.span)
            for rows in (count * shape.share for count in counts):
                few = min(lanes, max(2, _RESULTS // (rows * dim)))
                some = queries[:few, :rows].contiguous(), kv[:, :few, :keys].contiguous()
                hidden = mask[:few, :rows, :keys].contiguous()
                if not torch.equal(weighed(*some, hidden, dim**-0.5, 0.0, tiling.span), whole[:few, :rows]):
                    return False
        return True

    counts = range(tiling.queries, padded(QUERY_TILE, tiling.queries) + 1, tiling.queries)
    longest = padded(max(span, positions), span)
    lanes = max(1, min(4, AT_ONCE // (2 * longest * dim * dtype.itemsize)))
    few = [count for count in counts if count <= padded(max(FEW), tiling.queries)]
    far = _far(longest, span, span)
    return agree(_LANES, counts, span, range(tiling.keys, span + 1, tiling.keys)) and agree(
        lanes, few, longest, _in_time(far, seconds)
    )


class _Companies:
    """Query and key counts of the lanes of trial passes. The last lane of a pass is compared; the others are lanes like
    it and one that differs. Few queries, as in decoding, come more often than other counts."""

    def __init__(self, tiling: Tiling, positions: int, rng: np.random.Generator) -> None:
        self._keys, self._positions, self._rng = tiling.keys, positions, rng
        self._reach = 2 * max(tiling.span, tiling.keys) + QUERY_TILE
        self._deck: list[int] = []

    def near(self) -> Iterator[tuple[list[int], list[int]]]:
        """Yield passes for every padded length up to two spans."""
        marks = range(self._keys, self._reach + 1, self._keys)
        ends = [end for mark in marks for end in (mark, mark + 1) if end <= self._positions] or [self._positions]
        cases = [(end, copies) for end in ends for copies in (0, 1, 4, 12 + end % 8)]
        for end, copies in self._rng.permutation(cases).tolist():
            yield self._with_others(end, min(self._draw(), end), copies)

    def far(self) -> Iterator[tuple[list[int], list[int]]]:
        """Yield a pass for each of a sample of the lengths beyond."""
        if self._positions > self._reach:
            for end in _far(self._positions, self._reach, 1):
                yield self._with_others(end, int(self._rng.choice(FAR_QUERIES)), end % 3)

    def _with_others(self, end: int, count: int, copies: int) -> tuple[list[int], list[int]]:
        lanes = 1 + (copies if count <= max(FEW) else min(copies, 2))
        other = max(1, min(end + int(self._rng.integers(-end, WORTH_A_GROUP)), self._positions))
        others = count if lanes % 2 else self._draw()  # lanes with equal query counts are computed together
        return [min(others, other), *([count] * lanes)], [other, *([end] * lanes)]

    def _draw(self) -> int:
        if not self._deck:
            self._deck.extend(self._rng.permutation([*range(1, QUERY_TILE + 1), *(FEW * 4)]).tolist())
        return self._deck.pop()


class _Trial:
    """Random keys, values and queries of one layer. A position has the same query in every run."""

    def __init__(
        self,
        shape: Shape,
        tiling: Tiling,
        positions: int,
        dtype: torch.dtype,
        device: torch.device,
        seed: int,
        block_size: int,
    ) -> None:
        kv_heads = min(shape.kv_heads, 2)  # more would only repeat the trial
        shape = Shape(shape.share * kv_heads, kv_heads, shape.head_dim)
        self._shape, self._tiling, self._dtype, self._device = shape, tiling, dtype, device
        self._block_size = block_size
        self._blocks = -(-positions // self._block_size)
        generator = torch.Generator().manual_seed(seed)

        def draw(*size: int) -> torch.Tensor:
            return torch.randn(*size, generator=generator).to(device, dtype)

        self._pool = draw(2 * shape.kv_heads, self._blocks * self._block_size, shape.head_dim)
        self._queries = draw(251, shape.heads, shape.head_dim)
        self._table = np.random.default_rng(seed).permutation(self._blocks).astype(np.int32)
        self._alone: dict[int, torch.Tensor] = {}
        self.compared = 0  # results

    def holds(self, counts: list[int], lengths: list[int]) -> bool:
        """Return whether each query of the last lane has the same result in this pass as alone."""
        end = lengths[-1]
        alone = torch.cat([self._result(position) for position in range(end - counts[-1], end)])
        self.compared += alone.numel()
        return torch.equal(self._run(counts, lengths), alone)

    def _result(self, position: int) -> torch.Tensor:
        if position not in self._alone:
            self._alone[position] = self._run([1], [position + 1])
        return self._alone[position]

    def _run(self, counts: list[int], lengths: list[int]) -> torch.Tensor:
        """Return the results of the last lane; the other lanes have other keys."""
        shape, rows = self._shape, len(counts)
        lanes = Lanes(
            offsets=np.append(0, np.cumsum(counts)).astype(np.int32),
            lengths=np.array(lengths, np.int32),
            tables=np.stack([np.roll(self._table, rows - 1 - lane) for lane in range(rows)]),
        )
        at = np.concatenate([np.arange(length - count, length) for count, length in zip(counts, lengths)])
        plan = plan_lanes(
            lanes,
            len(at),
            shape=shape,
            block_size=self._block_size,
            tiling=self._tiling,
            dtype=self._dtype,
            device=self._device,
        )
        queries = self._queries.index_select(0, torch.from_numpy(at % len(self._queries)).to(self._device))
        return attend(plan, queries, self._pool, shape.head_dim**-0.5)[-counts[-1] :]
