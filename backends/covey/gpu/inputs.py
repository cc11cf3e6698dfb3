"""The inputs of a pass at fixed addresses in device memory, as recorded passes need them. The host fills them in and
copies them over in one transfer.

    header | tokens, positions, slots, seen, out, order | tiles | bits | tables, as wide as this pass needs | tails

This module knows no models. It pads a pass to a bucket with tokens that are not kept and tiles without queries.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from covey.contracts.types import Ints
from covey.gpu.kernels.attention import Tiles
from covey.gpu.tilings import Tiling
from covey.models.lanes import Lanes, Pass, Windows

TAIL = 32  # tokens of tree paths that there is room for, per token of a pass; no path of a tree is longer
HEADER = 4  # words; it holds the width of the tables and the number of words of bits per token
_FIELDS = ("tokens", "positions", "slots", "seen", "out", "order")
_TILE_FIELDS = ("first", "count", "row", "reach", "base", "tail")


@dataclass(frozen=True, slots=True)
class Bucket:
    """The size that a pass is recorded for; smaller passes are padded to it."""

    tokens: int
    tiles: int
    queries: int  # the most that a tile has
    out: int


def round_up(count: int) -> int:
    """Return the next size that passes are recorded for. Up to 128 it is a power of two or 1.5 times one, because small
    passes of any size read the same weights. Beyond 128, where arithmetic counts, it is a multiple of 32."""
    if count > 128:
        return -(-count // 32) * 32
    power = 1 << max(count - 1, 0).bit_length()
    between = power * 3 // 4
    return between if count <= between and power >= 4 else power


class Inputs:
    """Room for passes of up to `tokens` tokens, whose rows have up to `blocks` blocks and `nodes` tree nodes each."""

    def __init__(self, tokens: int, blocks: int, nodes: int, tiling: Tiling, device: torch.device) -> None:
        """A token with slot -1 is not kept."""
        self._tiling = tiling
        self._blocks, self._words = blocks, -(-nodes // 32)
        most = round_up(tokens)
        starts = HEADER + most * np.arange(len(_FIELDS) + len(_TILE_FIELDS) + 1)
        self._at = dict(zip((*_FIELDS, *_TILE_FIELDS, "bits"), starts.tolist()))
        self._at["tables"] = self._at["bits"] + most * self._words
        size = self._at["tables"] + most * (blocks + TAIL)
        host = torch.zeros(size, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._host, self._words_there = host, host.numpy()
        self._there = host if device.type == "cpu" else torch.zeros(size, dtype=torch.int32, device=device)
        self._copied = torch.cuda.Event() if device.type == "cuda" else None

    def fill(self, work: Pass, seen: Windows | Lanes) -> Bucket:
        """Copy a pass to the device. The last one's inputs may be overwritten: every pass waits for its results."""
        counts = seen.counts
        queries = self._tiling.queries(int(counts.max()))
        pieces = -(-counts // queries)
        row = np.repeat(np.arange(len(counts), dtype=np.int32), pieces)
        piece = np.arange(len(row), dtype=np.int32) - np.repeat(np.cumsum(pieces) - pieces, pieces).astype(np.int32)
        first = seen.offsets[row] + piece * np.int32(queries)
        count = np.minimum(seen.offsets[row + 1] - first, queries)
        if self._copied is not None:
            self._copied.synchronize()
        width = min(seen.tables.shape[1], self._blocks)
        tables = seen.tables[:, :width].reshape(-1)
        self._put("tables", tables, len(tables), 0)
        end = self._at["tables"] + len(tables)
        if isinstance(seen, Windows):
            reach, base, tail = self._put_windows(seen, row, first + count)
        else:
            reach, base, tail = self._put_lanes(work, seen, row, first + count, len(tables))
            end += len(seen.tails)
        bucket = Bucket(round_up(work.size), round_up(len(row)), queries, round_up(len(work.out)))
        for name, values, rest in (
            ("tokens", work.tokens, 0),
            ("positions", work.positions, 0),
            ("slots", work.slots, -1),
        ):
            self._put(name, values, bucket.tokens, rest)
        self._put("out", work.out, bucket.out, 0)
        for name, values in zip(_TILE_FIELDS, (first, count, row, reach, base, tail)):
            self._put(name, values, bucket.tiles, 0)
        self._words_there[0] = width
        if self._copied is not None:
            self._there[:end].copy_(self._host[:end], non_blocking=True)
            self._copied.record()
        return bucket

    def _put_windows(self, windows: Windows, row: Ints, ends: Ints) -> tuple[Ints, Ints, Ints]:
        """Return the tiles' `reach`, `base` and `tail`; tiles of rows `row` end at tokens `ends`."""
        words = windows.bits.shape[1]
        self._words_there[1] = words
        self._put("seen", windows.seen, len(windows.seen), 0)
        self._put("bits", windows.bits.reshape(-1), windows.bits.size, 0)
        reach: Ints = windows.seen[ends - 1]
        if words:
            branching = np.logical_or.reduceat(windows.bits.any(axis=1), windows.offsets[:-1])
            reach = np.where(branching[row], windows.lengths[row], reach)
        return reach, windows.base[row], np.zeros(len(row), np.int32)

    def _put_lanes(self, work: Pass, lanes: Lanes, row: Ints, ends: Ints, start: int) -> tuple[Ints, Ints, Ints]:
        """Put lanes as `_put_windows` puts windows; tails go after the tables, which end at `start`."""
        size = work.size
        assert lanes.offsets[-1] == size, "each token must be a query of exactly one lane"
        self._put("seen", work.positions + 1, size, 0)
        self._put("order", np.arange(size, dtype=np.int32) if lanes.queries is None else lanes.queries, size, 0)
        reach = lanes.lengths[row] - lanes.offsets[row + 1] + ends
        if lanes.tail_offsets is None:
            return reach, lanes.lengths[row], np.zeros(len(row), np.int32)
        room = len(self._words_there) - self._at["tables"] - start
        if len(lanes.tails) > room:
            raise ValueError(f"the paths of the trees have {len(lanes.tails)} tokens; there is room for {room}")
        self._words_there[self._at["tables"] + start :][: len(lanes.tails)] = lanes.tails
        base = lanes.lengths - np.diff(lanes.tail_offsets)
        return reach, base[row], (np.int32(start) + lanes.tail_offsets[:-1] - base)[row]

    def tiles(self, bucket: Bucket) -> Tiles:
        first, count, row, reach, base, tail = (self._view(name, bucket.tiles) for name in _TILE_FIELDS)
        return Tiles(
            tokens=bucket.queries,
            parts=self._tiling.parts(bucket.tiles),
            first=first,
            count=count,
            row=row,
            reach=reach,
            base=base,
            seen=self._view("seen", bucket.tokens),
            positions=self._view("positions", bucket.tokens),
            bits=self._there[self._at["bits"] : self._at["tables"]],
            order=self._view("order", bucket.tokens),
            tail=tail,
            tables=self._there[self._at["tables"] :],
            header=self._there[:HEADER],
        )

    def tokens(self, bucket: Bucket) -> torch.Tensor:
        return self._view("tokens", bucket.tokens)

    def slots(self, bucket: Bucket) -> torch.Tensor:
        return self._view("slots", bucket.tokens)

    def out(self, bucket: Bucket) -> torch.Tensor:
        return self._view("out", bucket.out)

    def _view(self, name: str, count: int) -> torch.Tensor:
        return self._there[self._at[name] : self._at[name] + count]

    def _put(self, name: str, values: Ints, size: int, rest: int) -> None:
        start = self._at[name]
        self._words_there[start : start + len(values)] = values
        self._words_there[start + len(values) : start + size] = rest
