"""Attention of a few queries of one lane, for the heads that share keys: scores, softmax, and the weighted values.

Keys lie in blocks of 32, one panel each: `[dim / 2, 32, 2]` if the CPU multiplies pairs of bfloat16, else `[dim, 32]`.
Values lie as `[32, dim]`. A query sums over its keys in the order of their positions, regardless of where they lie and
of the other queries. The last keys of a tree's path lie in other nodes' slots. They are gathered into blocks of
the task's own, as if its table pointed there.

    blocks of 4, 6 known keys, a path of two nodes in slots 37, 39        block 9 is 36 to 39
    table 2 9       keys 8 9 10 11  36 37            known
    own blocks                      36 37 37' 39'    copies of 36 and 37, then of the path's slots 37 and 39
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from covey.models.native import BLOCK, LANES, amx
from covey.models.native.tiles import AMX, FLOATS, LINE, PAIRS, WIDENED, Tile, call, has, most_rows
from covey.models.native.words import Array, bits_of, compiled, compiled_sum, number_of

SLOTS = BLOCK
ROWS = most_rows(2)

_LOG2_E, _LN2_HIGH, _LN2_LOW = (np.float32(value) for value in (1.4426950408889634, 0.693359375, -2.12194440e-4))
_TERMS = tuple(
    np.float32(value)
    for value in (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
)
_LEAST, _MOST = np.float32(-87.0), np.float32(88.0)
_WHOLE = np.float32(1.5 * 2**23)  # adding it leaves the nearest integer in the last bits
_ONE = np.float32(1)
_LEAST_INT = np.int32(-(2**31))


class Compared(NamedTuple):
    """The routines for queries times keys and weights times values, as addresses of tiles."""

    kind: int  # PAIRS, WIDENED or FLOATS: how keys and values lie
    scores: int  # for a block's keys
    rows: int  # most of `scores`
    terms: int  # of a query in a step of `scores`
    sums: tuple[int, int]  # for 16 and for 32 columns of a block's values

    @classmethod
    def of(cls, kind: int, dim: int, addresses: Mapping[Tile, int]) -> Compared:
        """Return the routines for heads of `dim` numbers."""
        scores, sums = tiles_of(kind)
        by = next(tile for tile in scores if dim % _terms(tile) == 0)
        narrow, wide = (addresses[tile] for tile in sums)
        return cls(kind, addresses[by], most_rows(2, by.kind), _terms(by), (narrow, wide))


def tiles_of(kind: int) -> tuple[list[Tile], list[Tile]]:
    """Return the tiles for scores, the fastest first, and for sums of `Compared`."""
    by = FLOATS if kind == FLOATS else WIDENED
    scores = [Tile(kind, 2, 1 if kind == WIDENED else 2)]
    if kind == PAIRS and has(AMX):
        scores.insert(0, Tile(AMX, 2, amx.STEP))
    return scores, [Tile(by, 1, 1), Tile(by, 2, 1)]


def _terms(scores: Tile) -> int:
    return {PAIRS: 2, AMX: amx.STEP}.get(scores.kind, 1)


class Seen(NamedTuple):
    """The keys that each query of a pass sees: lanes as in `covey.models.lanes`, and tasks. A task is some queries of a
    lane, or one query if the lane has a tail."""

    offsets: Array
    lengths: Array
    tables: Array
    queries: Array
    tail_offsets: Array  # one more than lanes; all zero if no lane has a tail
    tails: Array
    task_lanes: Array
    task_firsts: Array  # the first query's index within its lane
    task_counts: Array


@compiled
def exponential(x):
    """Return e to the power of a float32, which is clipped to -87 and 88; within an eight-millionth."""
    y = _LEAST if x < _LEAST else x  # keeps NaN
    y = _MOST if y > _MOST else y
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
def largest(values):
    """Return the largest number; with NaN among the values, any."""
    most = _LEAST_INT
    for i in range(len(values)):
        most = np.int32(max(most, _ordered(bits_of(values[i]))))
    return number_of(_ordered(most))


@compiled
def _ordered(bits):
    """Return an integer that is ordered as a float32 with these bits, or the bits of such an integer. LLVM compares
    integers in vectors, but not floats, where NaN could be among them."""
    return np.int32(bits ^ np.int32(np.int32(bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@compiled_sum
def _total(values):
    """Sum the values in an order that depends only on their number."""
    total = np.float32(0)
    for i in range(len(values)):
        total += values[i]
    return total


@compiled
def softmax(values):
    """Compute the softmax in place, without the division by the sum. Return the sum."""
    most = largest(values)
    for i in range(len(values)):
        values[i] = exponential(values[i] - most)
    return _total(values)


@compiled
def _gather(keys, values, own_keys, own_values, head, table, known, tail, pairs):
    """Copy a path's blocks, from the block of its first node on. Return the index of that block."""
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
def _place(pool, own, first, table, head, block):
    """Return the address of a block of a head's keys or values; from block `first` on they are the task's own."""
    if block >= first:
        return own.ctypes.data + (block - first) * own.strides[0]
    return pool.ctypes.data + table[block] * pool.strides[0] + head * pool.strides[1]


@compiled
def _score(how, rows, k, ahead, q, q_row, dim, size, y, y_row):
    """Compute y[rows, 32] = queries times a block's keys, and prefetch the block at `ahead`."""
    parts, row = (rows + how.rows - 1) // how.rows, 0
    step, steps = how.terms * size * SLOTS, dim // how.terms
    for part in range(parts):
        some = rows // parts + (1 if part < rows % parts else 0)
        call(how.scores, some, k, step, q + row * q_row, q_row, 0, 0, y + row * y_row, y_row, steps, 1, ahead)
        row += some


@compiled
def _sum(how, rows, v, ahead, x, x_row, y, y_row, dim, size, steps, fresh):
    """Compute y[rows, dim] += weights of `steps` keys times their values. Prefetch as much of the block at `ahead`."""
    parts, row = (rows + ROWS - 1) // ROWS, 0
    for part in range(parts):
        some = rows // parts + (1 if part < rows % parts else 0)
        start, own, to = 0, x + row * x_row, y + row * y_row
        while start < dim:
            wide = 1 if dim - start >= 2 * LANES else 0
            here, fetched = v + start * size, ahead + start // (2 * LANES) * steps * LINE
            call(how.sums[wide], some, here, dim * size, own, x_row, 0, 0, to + 4 * start, y_row, steps, fresh, fetched)
            start += LANES << wide
        row += some


@compiled
def attend(how, seen, task, head, keys, values, q, group, scores, sums, own_keys, own_values, out, width):
    """Compute one task for one key head. Its `group` query heads lie scaled at `q[head, token, group, dim]`, and
    results go to `out[token, heads * width]`. `dim` is `width` rounded up to whole vectors. `scores`, `sums` and the
    own blocks belong to the thread."""
    lane, first, count = seen.task_lanes[task], seen.task_firsts[task], seen.task_counts[task]
    begin, length, table = seen.offsets[lane], seen.lengths[lane], seen.tables[lane]
    tail = seen.tails[seen.tail_offsets[lane] : seen.tail_offsets[lane + 1]]
    known, token = length - len(tail), seen.queries[begin + first]
    # The number of keys that the first query sees; each query sees one more than the one before.
    least = length - (seen.offsets[lane + 1] - begin) + first + 1
    most, rows, dim, size = least + count - 1, count * group, values.shape[3], values.itemsize
    blocks = (most + SLOTS - 1) // SLOTS
    last, own = blocks - 1, blocks
    if most > known:
        own = _gather(keys, values, own_keys, own_values, head, table, known, tail, how.kind == PAIRS)

    q_row, x, x_row = q.itemsize * dim, scores.ctypes.data, scores.strides[0]
    queries = q.ctypes.data + (head * q.shape[1] + token) * group * q_row
    for block in range(blocks):
        here = _place(keys, own_keys, own, table, head, block)
        ahead = _place(keys, own_keys, own, table, head, min(block + 1, last))
        _score(how, rows, here, ahead, queries, q_row, dim, size, x + 4 * SLOTS * block, x_row)
    for row in range(rows):
        sums[row, dim] = softmax(scores[row, : least + row // group])
    y, y_row = sums.ctypes.data, sums.strides[0]
    for block in range(blocks):
        here = _place(values, own_values, own, table, head, block)
        ahead = _place(values, own_values, own, table, head, min(block + 1, last))
        start = block * SLOTS
        some = max(0, min(SLOTS, least - start))
        if some:
            new = 1 if block == 0 else 0
            _sum(how, rows, here, ahead, x + 4 * start, x_row, y, y_row, dim, size, some, new)
        for row in range(group, rows):  # rows that see more keys than the first query
            more = min(SLOTS, least + row // group - start) - some
            if more > 0:
                new, own_x = 1 if start + some == 0 else 0, x + row * x_row + 4 * (start + some)
                _sum(
                    how, 1, here + some * dim * size, ahead, own_x, x_row, y + row * y_row, y_row, dim, size, more, new
                )

    for row in range(rows):
        column, scale = (head * group + row % group) * width, np.float32(1) / sums[row, dim]
        to = out[token + row // group, column : column + width]
        for i in range(width):
            to[i] = sums[row, i] * scale
