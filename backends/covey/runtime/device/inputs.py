"""What a pass reads, at fixed places in device memory, so that a recorded pass can be replayed: filled on the host, and
brought over in one copy.

    header | tokens, positions, slots, seen, out | tiles | bits | tables, as wide as this pass needs

Knows nothing of models. A pass is padded to a bucket: tokens that are kept nowhere, tiles without queries.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from covey.runtime.kernels.attention import Tiles, queries_of
from covey.runtime.lanes import Pass, Windows
from covey.types import Ints

HEADER = 4  # the tables' width, and a token's words of bits
_FIELDS = ("tokens", "positions", "slots", "seen", "out")
_TILE_FIELDS = ("first", "count", "row", "reach", "base")


@dataclass(frozen=True, slots=True)
class Bucket:
    """What a recorded pass is made for; what is smaller runs in it."""

    tokens: int
    tiles: int
    queries: int  # of a tile, at most
    out: int


def round_up(count: int) -> int:
    """The next size that passes are recorded for: powers of two and one and a half times those, for such small passes
    read the same weights whatever their size; beyond 128, where arithmetic begins to count, multiples of 32."""
    if count > 128:
        return -(-count // 32) * 32
    power = 1 << max(count - 1, 0).bit_length()
    between = power * 3 // 4
    return between if count <= between and power >= 4 else power


class Inputs:
    """Room for passes of up to `tokens` tokens, whose rows have up to `blocks` blocks and `nodes` nodes each."""

    def __init__(
        self, tokens: int, blocks: int, nodes: int, share: int, device: torch.device, wide: bool = False
    ) -> None:
        """`share`: query heads of a key head; `wide`: of float32. A token of slot -1 is kept nowhere."""
        self._share, self._wide = share, wide
        self._blocks, self._words = blocks, -(-nodes // 32)
        most = round_up(tokens)
        starts = HEADER + most * np.arange(len(_FIELDS) + len(_TILE_FIELDS) + 1)
        self._at = dict(zip((*_FIELDS, *_TILE_FIELDS, "bits"), starts.tolist()))
        self._at["tables"] = self._at["bits"] + most * self._words
        size = self._at["tables"] + most * blocks
        host = torch.zeros(size, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._host, self._words_there = host, host.numpy()
        self._there = host if device.type == "cpu" else torch.zeros(size, dtype=torch.int32, device=device)
        self._copied = torch.cuda.Event() if device.type == "cuda" else None
        self._most = most

    def fill(self, work: Pass, windows: Windows, apart: npt.NDArray[np.bool_] | None = None) -> Bucket:
        """Bring a pass over; rows `apart` have no tiles. What was filled in before has been read by then: passes wait
        for their results."""
        counts = np.diff(windows.offsets)
        tiled = counts if apart is None else np.where(apart, 0, counts)
        queries = queries_of(self._share, max(int(tiled.max()), 1), self._wide)
        pieces = -(-tiled // queries)
        tiles = int(pieces.sum())
        bucket = Bucket(round_up(work.size), round_up(tiles), queries, round_up(len(work.out)))
        if self._copied is not None:
            self._copied.synchronize()
        words = windows.bits.shape[1]
        width = min(windows.tables.shape[1], self._blocks)
        for name, values, rest in (
            ("tokens", work.tokens, 0),
            ("positions", work.positions, 0),
            ("slots", work.slots, -1),
            ("seen", windows.seen, 0),
        ):
            self._put(name, values, bucket.tokens, rest)
        self._put("out", work.out, bucket.out, 0)
        row = np.repeat(np.arange(len(counts), dtype=np.int32), pieces)
        piece = np.arange(tiles, dtype=np.int32) - np.repeat(np.cumsum(pieces) - pieces, pieces).astype(np.int32)
        first = windows.offsets[row] + piece * np.int32(queries)
        count = np.minimum(windows.offsets[row + 1] - first, queries)
        reach = windows.seen[first + count - 1]
        if words:
            branching = np.logical_or.reduceat(windows.bits.any(axis=1), windows.offsets[:-1])
            reach = np.where(branching[row], windows.lengths[row], reach)
        for name, values in (
            ("first", first),
            ("count", count),
            ("row", row),
            ("reach", reach),
            ("base", windows.base[row]),
        ):
            self._put(name, values, bucket.tiles, 0)
        self._words_there[:2] = width, words
        self._put("bits", windows.bits.reshape(-1), work.size * words, 0)
        tables = windows.tables[:, :width].reshape(-1)
        self._put("tables", tables, len(tables), 0)
        if self._copied is not None:
            end = self._at["tables"] + len(tables)
            self._there[:end].copy_(self._host[:end], non_blocking=True)
            self._copied.record()
        return bucket

    def tiles(self, bucket: Bucket) -> Tiles:
        first, count, row, reach, base = (self._view(name, bucket.tiles) for name in _TILE_FIELDS)
        return Tiles(
            tokens=bucket.queries,
            first=first,
            count=count,
            row=row,
            reach=reach,
            base=base,
            seen=self._view("seen", bucket.tokens),
            positions=self._view("positions", bucket.tokens),
            bits=self._there[self._at["bits"] : self._at["tables"]],
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
