"""A panel of 32 columns times all rows of a pass, and the conversion of rows to the form that panels multiply."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from covey.models.native import LANES, amx
from covey.models.native.tiles import AMX, BYTES, GROUP, LINE, PAIRS, WIDE, Tile, call, most_rows
from covey.models.native.words import Array, bits_of, compiled, number_of, rounded

COLUMNS = 32  # of a panel
# k is cut into blocks: all rows are multiplied by one block, which stays in the second-level cache, before the next.
BLOCK = 1024 if WIDE else 256
# Vectors of a tile. With 16 registers, two rows meet a whole panel and up to six rows a half of it.
PARTS = (2,) if WIDE else (2, 1)
PANEL_BYTES = (64, 64, 128, 32, 64)  # for each k, by kind
COLUMN_BYTES = (4, 2, 4, 4, 4)  # of a step, by kind
ROW_BYTES = (2, 4, 4, 1, 2)
STEPS = (2, 1, 1, GROUP, amx.STEP)  # k per step of a tile, by kind
_SHIFT, _SHIFTED = 1.5 * 2**23, 0x4B400000  # a float32 whose last bit is worth 1, and its bits


class Multiplied(NamedTuple):
    """The routines that compute a model's products: their kind, and addresses of tiles by number of rows."""

    kind: int
    rows: int  # most of a tile
    vectors: Array  # by a tile's rows
    alone: Array  # they prefetch as much as they read
    halves: Array  # they prefetch half as much
    others: Array  # they prefetch nothing

    @classmethod
    def of(cls, kind: int, addresses: Mapping[Tile, int]) -> Multiplied:
        vectors = _vectors(kind)
        by_rows = [[addresses[tile] for tile in each] for each in _by_rows(kind)]
        return cls(kind, len(vectors), *(np.array([0, *each]) for each in (vectors, *by_rows)))


def tiles_of(kind: int) -> frozenset[Tile]:
    return frozenset(tile for each in _by_rows(kind) for tile in each)


def _by_rows(kind: int) -> list[list[Tile]]:
    """Return the tiles of `Multiplied`, from one row on."""
    turn = 1 if kind in (BYTES, AMX) else 2
    lines = PANEL_BYTES[kind] * turn * (4 if kind == BYTES else STEPS[kind]) // LINE  # of a panel in a turn
    return [
        [Tile(kind, each, fetched * each // PARTS[0], turn) for each in _vectors(kind)]
        for fetched in (lines, lines // 2 if WIDE else 0, 0)
    ]


def _vectors(kind: int) -> list[int]:
    """Return the vectors of a tile by its number of rows, from one row on."""
    most = most_rows(PARTS[-1], kind)
    return [max(each for each in PARTS if rows <= most_rows(each, kind)) for rows in range(1, most + 1)]


class Rows(NamedTuple):
    """The rows that panels are multiplied by, in the form of each kind: views of the same memory."""

    words: Array  # [rows, k], bits of bfloat16
    floats: Array
    small: Array  # bytes
    factors: Array  # [rows, 2 * groups]: for each group of bytes a factor, and the start of its sums
    starts: Array


@compiled
def panel(how, w, number, rows, count, k, y, then):
    """Compute y[count, 32] = the first `count` rows times panel `number` of the panels at address `w`. Prefetch the
    panel at address `then`."""
    size, row_size, step = PANEL_BYTES[how.kind], ROW_BYTES[how.kind], STEPS[how.kind]
    x, x_row = rows.small.ctypes.data, rows.small.strides[0]
    factors, factors_row = rows.factors.ctypes.data, rows.factors.strides[0]
    parts = (count + how.rows - 1) // how.rows
    for start in range(0, k, BLOCK):
        some, fresh = min(BLOCK, k - start), 1 if start == 0 else 0
        here = w + (number * k + start) * size
        following = here + some * size if start + some < k else then
        row = 0
        for part in range(parts):
            n = count // parts + (1 if part < count % parts else 0)
            by, ahead = how.others[n], following
            if parts == 1 or (part == 0 and not WIDE):
                by = how.alone[n]
            elif part < 2 and WIDE:
                by = how.halves[n]
                ahead += part * some * size // 2
            own, to = x + row * x_row + start * row_size, y.ctypes.data + row * y.strides[0]
            scales = factors + row * factors_row + start // GROUP * 8
            wide = how.vectors[n] * LANES
            for column in range(0, COLUMNS, wide):
                beside, fetched = here + column * COLUMN_BYTES[how.kind], ahead + column * some * size // COLUMNS
                call(
                    by,
                    n,
                    beside,
                    step * size,
                    own,
                    x_row,
                    scales,
                    factors_row,
                    to + 4 * column,
                    y.strides[0],
                    some // step,
                    fresh,
                    fetched,
                )
            row += n


@compiled
def put(kind, values, rows, first, at):
    """Write float32 values [count, k] into rows from `first` on, from index `at` on, in the form that tiles of this
    kind multiply. Fill the last group with zeros."""
    count, k = values.shape
    end = at + k
    # The padding of weights is zero, but an earlier row may have left a number there that is not finite.
    whole = (end + GROUP - 1) // GROUP * GROUP
    if kind in (PAIRS, AMX):
        for row in range(count):
            to = rows.words[first + row]
            for i in range(k):
                to[at + i] = rounded(values[row, i])
            to[end:whole] = 0
    elif kind == BYTES:
        for row in range(count):
            to_small = rows.small[first + row]
            _put_bytes(values[row], to_small, rows.factors[first + row], rows.starts[first + row], at)
            to_small[end:whole] = 0
    else:
        for row in range(count):
            to_floats = rows.floats[first + row]
            for i in range(k):
                to_floats[at + i] = values[row, i]
            to_floats[end:whole] = 0


@compiled
def _put_bytes(values, small, factors, starts, at):
    """Write a row's numbers as bytes up to 127, with a factor for each group."""
    # Indices are unsigned, because Numba looks whether others are negative. Slices would cost counts of references.
    group, end = np.uint64(GROUP), np.uint64(len(values))
    for first in range(np.uint64(0), end, group):
        most, total, to = np.int32(0), np.int32(0), np.uint64(at) + first
        for i in range(first, min(first + group, end)):
            most = max(most, np.int32(bits_of(values[i]) & np.int32(0x7FFFFFFF)))  # bits have the order of sizes
        largest = number_of(most)
        # NaN compares as false: its row's factor is NaN, and so are its sums.
        by = np.float32(127) / largest if largest > np.float32(1e-30) else np.float32(0)
        for i in range(first, min(first + group, end)):
            one = np.int32(bits_of(values[i] * by + np.float32(_SHIFT)) - _SHIFTED)  # its sum's last bit is worth 1
            small[to + (i - first)] = one
            total = np.int32(total + one)
        place = to // group * np.uint64(2)
        factors[place] = largest * np.float32(1 / 127)
        starts[place + np.uint64(1)] = -128 * total  # because 128 is added to stored weights
