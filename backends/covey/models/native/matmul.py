"""A panel of 64 columns times all rows of a pass, and rows made into what panels are multiplied by."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from covey.models.native.tiles import BYTES, GROUP, LANES, PAIRS, WIDENED, Tile, call, most_rows
from covey.models.native.words import Array, compiled, rounded

COLUMNS = 64  # of a panel
BLOCK = 1024  # numbers of a column that all rows are multiplied by before the next ones: they stay in the second cache
ROWS = most_rows(COLUMNS // LANES)
PANEL_BYTES = (128, 128, 256, 64)  # for each k, by kind
ROW_BYTES = (2, 4, 4, 1)
STEPS = (2, 1, 1, GROUP)  # of k, in a tile


class Multiplied(NamedTuple):
    """The routines that compute a model's products: a kind, and addresses of its tiles."""

    kind: int
    first: int  # of up to so many rows as a tile has
    others: int  # of more


def tiles_of(kind: int) -> tuple[Tile, Tile]:
    """Return the first and others of `Multiplied`."""
    lines = 2 if kind == WIDENED else 4
    return Tile(kind, 4, lines), Tile(kind, 4, lines // 2)


class Rows(NamedTuple):
    """The rows that panels are multiplied by, in the kind's own form: views of the same memory."""

    words: Array  # [rows, k] of bfloat16's bits
    floats: Array
    small: Array  # of bytes
    factors: Array  # [rows, 2 * groups]: of each group of bytes a factor, and where its sums start
    starts: Array


@compiled
def panel(how, w, number, rows, count, k, y):
    """Compute y[count, 64] = the first rows times panel `number` of those that begin at address `w`."""
    size, row_size, step = PANEL_BYTES[how.kind], ROW_BYTES[how.kind], STEPS[how.kind]
    x, x_row = rows.small.ctypes.data, rows.small.strides[0]
    factors, factors_row = rows.factors.ctypes.data, rows.factors.strides[0]
    parts = (count + ROWS - 1) // ROWS
    by = how.first if parts == 1 else how.others
    for start in range(0, k, BLOCK):
        some, fresh = min(BLOCK, k - start), 1 if start == 0 else 0
        here = w + (number * k + start) * size
        row = 0
        for part in range(parts):
            n = count // parts + (1 if part < count % parts else 0)
            own, to = x + row * x_row + start * row_size, y.ctypes.data + row * y.strides[0]
            ahead = here + some * size
            if parts > 1:  # each of them fetches some
                ahead += part * some * size // 2
            scales = factors + row * factors_row + start // GROUP * 8
            call(
                by, n, here, step * size, own, x_row, scales, factors_row, to, y.strides[0], some // step, fresh, ahead
            )
            row += n


@compiled
def put(kind, values, rows, row, at):
    """Write float32 values into a row of what tiles of this kind multiply, from `at` on, and zeros up to the next
    group."""
    if kind == PAIRS:
        to = rows.words[row, at : at + len(values)]
        for i in range(len(values)):
            to[i] = rounded(values[i])
    elif kind == BYTES:
        for start in range(0, len(values), GROUP):
            _put_group(values[start : start + GROUP], rows, row, at + start)
    else:
        floats = rows.floats[row, at : at + len(values)]
        for i in range(len(values)):
            floats[i] = values[i]
    rest = at + len(values)
    while rest % GROUP:  # weights there are zero, and what an earlier row left might not be finite
        if kind == PAIRS:
            rows.words[row, rest] = 0
        elif kind == BYTES:
            rows.small[row, rest] = 0
        else:
            rows.floats[row, rest] = 0
        rest += 1


@compiled
def _put_group(values, rows, row, at):
    most = np.float32(0)
    for i in range(len(values)):
        most = max(most, abs(values[i]))
    inverse = np.float32(127) / most if most > 0 else np.float32(0)
    total, to = np.int32(0), rows.small[row, at : at + len(values)]
    for i in range(len(values)):
        whole = np.int32(np.rint(values[i] * inverse))
        to[i] = whole
        total += whole
    group = at // GROUP * 2
    rows.factors[row, group] = most * np.float32(1 / 127)
    rows.starts[row, group + 1] = -128 * total  # weights are stored with 128 added to them
