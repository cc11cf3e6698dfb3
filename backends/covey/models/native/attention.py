"""Attention of a few queries of one lane, for the heads that share keys: scores, their softmax, and the sum of values.

Keys lie in blocks of 32, a panel each: `[dim / 2, 32, 2]` in bfloat16 where the CPU multiplies pairs of it, else
`[dim, 32]`; values as `[32, dim]`. A query sums over its keys in the order of their positions, whatever is beside it
and wherever they lie. A tree's path has its last keys in other nodes' slots: they are gathered into blocks of the
task's own, as its table would have them.

    blocks of 4, 6 known keys, a path of two nodes in slots 37, 39        block 9 is 36 to 39
    table 2 9       keys 8 9 10 11  36 37            known
    own blocks                      36 37 37' 39'    what is in 36 and 37, then the path's slots 37 and 39
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from covey.models.native import BLOCK
from covey.models.native.tiles import FLOATS, LANES, PAIRS, WIDENED, Tile, call, most_rows
from covey.models.native.words import Array, bits_of, compiled, compiled_sum, number_of

SLOTS = BLOCK
ROWS = most_rows()

_LOG2_E, _LN2_HIGH, _LN2_LOW = (np.float32(value) for value in (1.4426950408889634, 0.693359375, -2.12194440e-4))
_TERMS = tuple(
    np.float32(value)
    for value in (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
)
_LEAST, _MOST = np.float32(-87.0), np.float32(88.0)
_WHOLE = np.float32(1.5 * 2**23)  # added to a number it leaves the nearest whole one in the last bits
_ONE = np.float32(1)


class Compared(NamedTuple):
    """How queries meet keys and weights meet values: the kind of scores, and addresses of tiles."""

    kind: int
    scores: int  # a block's keys
    sums: tuple[int, int, int]  # 16, 32 and 64 numbers of its values


def tiles_of(kind: int) -> tuple[Tile, tuple[Tile, Tile, Tile]]:
    """The scores and sums of `Compared`."""
    by = FLOATS if kind == FLOATS else WIDENED
    return Tile(kind, 2), (Tile(by, 1), Tile(by, 2), Tile(by, 4))


class Seen(NamedTuple):
    """Who sees what in a pass: lanes as in `covey.models.lanes`, and tasks, some queries of a lane each. A task with a
    tail has one query."""

    offsets: Array
    lengths: Array
    tables: Array
    queries: Array
    tail_offsets: Array  # one number for each lane and one more, also where nobody has a tail
    tails: Array
    task_lanes: Array
    task_firsts: Array  # the first query's number within its lane
    task_counts: Array


@compiled
def exponential(x):
    """e to the power of a float32, or of the nearest one that has a power; within an eight-millionth."""
    y = min(max(x, _LEAST), _MOST)
    marked = y * _LOG2_E + _WHOLE
    whole = marked - _WHOLE
    rest = y - whole * _LN2_HIGH - whole * _LN2_LOW
    total = _TERMS[0]
    total = total * rest + _TERMS[1]
    total = total * rest + _TERMS[2]
    total = total * rest + _TERMS[3]
    total = total * rest + _TERMS[4]
    total = total * rest + _TERMS[5]
    total = total * rest * rest + rest + _ONE
    return total * number_of(np.int32((bits_of(marked) << np.int32(23)) + np.int32(0x3F800000)))


@compiled
def _largest(values):
    """Of finite values; sixteen at a time."""
    most = values[0]
    for i in range(1, len(values)):
        most = max(most, values[i])
    return most


@compiled_sum
def _total(values):
    """In an order that depends on how many there are, and on nothing else."""
    total = np.float32(0)
    for i in range(len(values)):
        total += values[i]
    return total


@compiled
def _softmax(values):
    """In place, but for the division by what is returned."""
    most = _largest(values)
    for i in range(len(values)):
        values[i] = exponential(values[i] - most)
    return _total(values)


@compiled
def _gather(keys, values, own_keys, own_values, head, table, known, tail, pairs):
    """The blocks of a path from the one of its first node on; which one that is."""
    first, dim = known // SLOTS, values.shape[3]
    for at in range(first * SLOTS, known + len(tail)):
        slot = table[first] * SLOTS + at % SLOTS if at < known else tail[at - known]
        block, place = slot // SLOTS, slot % SLOTS
        to, there = at // SLOTS - first, at % SLOTS
        if pairs:
            for i in range(dim):
                pair = i // 2 * 2 * SLOTS + i % 2
                own_keys[to, pair + 2 * there] = keys[block, head, pair + 2 * place]
        else:
            for i in range(dim):
                own_keys[to, i * SLOTS + there] = keys[block, head, i * SLOTS + place]
        for i in range(dim):
            own_values[to, there, i] = values[block, head, place, i]
    return first


@compiled
def _sum_values(sums, rows, v, x, x_row, y, y_row, dim, size, steps, fresh):
    """y[rows, dim] += weights of some keys times their values."""
    start = 0
    while start < dim:
        which = min(2, (dim - start) // 32)
        call(sums[which], rows, v + start * size, dim * size, x, x_row, 0, 0, y + 4 * start, y_row, steps, fresh, 0)
        start += LANES << which


@compiled
def attend(how, seen, task, head, keys, values, q, group, scores, sums, own_keys, own_values, out, width):
    """One task for one head of keys, whose `group` heads of queries lie at `q[head, token, group, dim]`, scaled. Writes
    `out[token, heads * width]`; `dim` is `width` and what it lacks of whole vectors. `scores`, `sums` and the own
    blocks are the thread's."""
    lane, first, count = seen.task_lanes[task], seen.task_firsts[task], seen.task_counts[task]
    begin = seen.offsets[lane]
    length, queries = seen.lengths[lane], seen.offsets[lane + 1] - begin
    table = seen.tables[lane]
    tail = seen.tails[seen.tail_offsets[lane] : seen.tail_offsets[lane + 1]]
    known = length - len(tail)
    token = seen.queries[begin + first]
    least = length - queries + first + 1  # keys of the first query; each has one more than the one before
    most = least + count - 1
    rows, dim, size = count * group, values.shape[3], values.itemsize
    gathered = most > known
    own = _gather(keys, values, own_keys, own_values, head, table, known, tail, how.kind == PAIRS) if gathered else 0

    blocks = (most + SLOTS - 1) // SLOTS
    parts = (rows + ROWS - 1) // ROWS
    pairs = how.kind == PAIRS
    step, steps = SLOTS * (4 if pairs else size), dim // 2 if pairs else dim
    x_row = q.itemsize * dim
    x = q.ctypes.data + (head * q.shape[1] + token) * group * x_row
    y_row = scores.strides[0]
    for block in range(blocks):
        if gathered and block >= own:
            k = own_keys.ctypes.data + (block - own) * own_keys.strides[0]
        else:
            k = keys.ctypes.data + table[block] * keys.strides[0] + head * keys.strides[1]
        row, y = 0, scores.ctypes.data + 4 * SLOTS * block
        for part in range(parts):
            some = rows // parts + (1 if part < rows % parts else 0)
            call(how.scores, some, k, step, x + row * x_row, x_row, 0, 0, y + row * y_row, y_row, steps, 1, 0)
            row += some

    for row in range(rows):
        sums[row, dim] = _softmax(scores[row, : least + row // group])

    s_row = sums.strides[0]
    for block in range(blocks):
        if gathered and block >= own:
            v = own_values.ctypes.data + (block - own) * own_values.strides[0]
        else:
            v = values.ctypes.data + table[block] * values.strides[0] + head * values.strides[1]
        start, fresh = block * SLOTS, 1 if block == 0 else 0
        y, x = sums.ctypes.data, scores.ctypes.data + 4 * start
        common = min(SLOTS, least - start)
        if common > 0:
            row = 0
            for part in range(parts):
                some = rows // parts + (1 if part < rows % parts else 0)
                _sum_values(how.sums, some, v, x + row * y_row, y_row, y + row * s_row, s_row, dim, size, common, fresh)
                row += some
        for row in range(group, rows):  # those that see more than the first query
            rest = min(SLOTS, least + row // group - start)
            done = max(common, 0)
            if rest > done:
                new = 1 if start + done == 0 else 0
                x_rest, y_rest = x + row * y_row + 4 * done, y + row * s_row
                _sum_values(
                    how.sums, 1, v + done * dim * size, x_rest, y_row, y_rest, s_row, dim, size, rest - done, new
                )

    for row in range(rows):
        place = token + row // group
        column = (head * group + row % group) * width
        scale = np.float32(1) / sums[row, dim]
        for i in range(width):
            out[place, column + i] = sums[row, i] * scale
