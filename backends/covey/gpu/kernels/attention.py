"""Attention of packed tokens over a paged pool: chains and trees, grouped-query heads, split over long contexts.

A program takes one *tile*: up to `tokens` queries of one row, with all query heads of one key head. It reads the row's
keys once for all of them. Long contexts are split among programs, and a second kernel joins the parts. A query sees the
first `seen` keys of its row. It also sees those keys from `base` on whose bit in `bits` is set: a node's ancestors and
itself, as in `covey.models.lanes.Windows`. All inputs that change from pass to pass are in device memory.

If parts have a fixed span, a row is a lane as in `covey.models.lanes.Lanes`: `order` lists its queries, and its keys
from `base` on have separate slots. Every query then meets its keys in position order, in products of one shape,
in any pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from covey.gpu.kernels import INTERPRETED, PRECISION
from covey.gpu.kernels.layout import Layout, slot_start

LEAST = 16  # rows of a product: queries of a tile times query heads per key head
KEYS = 64  # that a program usually reads at a time
MOST_DIM = 128  # largest head that may read 2 * KEYS at a time: 72 KiB of shared memory, against 140 for heads of 256
LINES, JOINED = 4, 8  # lines (heads of tokens) that a program joins, and the parts of each that it reads at a time


@triton.jit
def attend_tile(
    query,
    pool,
    offsets,
    out,
    partial,
    heights,
    first,
    count,
    row,
    reach,
    base,
    seen,
    position,
    bits,
    order,
    tail,
    tables,
    header,
    layer_offset,
    token_stride,
    scale,
    softcap,
    WINDOW: tl.constexpr,
    CAPPED: tl.constexpr,
    HEADS: tl.constexpr,
    SHARE: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_STRIDE: tl.constexpr,
    SEGMENT: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
    SPLIT: tl.constexpr,
    SPAN: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Attend with one tile to one part of one key head's keys. `header` holds the width of the tables and the number of
    words of bits per token. The slots of a lane's keys from `base` on are at `tables + tail`, indexed from the lane's
    first key. `heights` are the base-2 logarithms of each part's summed weights."""
    tile, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    parts = tl.num_programs(2)
    queries = tl.load(count + tile)
    if queries == 0:  # a padding tile of the bucket
        return
    keys = tl.load(reach + tile)
    begin = tl.load(base + tile)
    place = tl.load(row + tile)
    table = tables + place * tl.load(header)
    words = tl.load(header + 1)
    lane = tl.arange(0, M)
    token = lane // SHARE
    inside = token < queries
    packed = tl.load(first + tile) + tl.where(inside, token, 0)
    if SPAN > 0:
        packed = tl.load(order + packed)
        if part * SPAN >= keys:
            empty = (packed * HEADS + head * SHARE + lane % SHARE).to(tl.int64) * parts + part
            tl.store(heights + empty, tl.full([M], float("-inf"), tl.float32), mask=inside)
            return
    own_head = head * SHARE + lane % SHARE
    dim = tl.arange(0, D)
    known = dim < DIM
    at = packed[:, None] * token_stride + (own_head * DIM)[:, None] + dim[None, :]
    q = tl.load(query + at, mask=inside[:, None] & known[None, :], other=0.0)
    if WIDE:
        q = q.to(tl.float32)
    sees = tl.where(inside, tl.load(seen + packed), 0)
    lower = 0
    if WINDOW > 0:
        where = tl.load(position + packed)
        least = tl.min(tl.where(inside, where, 2147483647)) - WINDOW + 1
        lower = tl.maximum(least, 0)
    if SPAN > 0:
        own_slots = tables + tl.load(tail + tile)
        start = tl.maximum(part * SPAN, lower // N * N)
        stop = tl.minimum(part * SPAN + SPAN, keys)
    else:
        span = tl.cdiv(tl.cdiv(keys - lower, parts), N) * N
        start = lower + part * span
        stop = tl.minimum(start + span, keys)
    top = tl.full([M], float("-inf"), tl.float32)
    mass = tl.zeros([M], tl.float32)
    total = tl.zeros([M, D], tl.float32)
    for key in range(start, stop, N):
        index = key + tl.arange(0, N)
        there = index < stop
        block, inner = tl.load(table + index // BLOCK_SIZE, mask=there, other=0), index % BLOCK_SIZE
        if SPAN > 0:
            late = index >= begin
            own = tl.load(own_slots + index, mask=there & late, other=0)
            block = tl.where(late, own // BLOCK_SIZE, block)
            inner = tl.where(late, own % BLOCK_SIZE, inner)
        line = slot_start(offsets, block, inner, BLOCK_STRIDE, SEGMENT, DIM) + layer_offset + head * (BLOCK_SIZE * DIM)
        spot = tl.multiple_of(line[:, None] + dim[None, :], (1, 8))
        keep = there[:, None] & known[None, :]
        k = tl.load(pool + spot, mask=keep, other=0.0)
        v = tl.load(pool + spot + (HEADS // SHARE) * BLOCK_SIZE * DIM, mask=keep, other=0.0)
        if WIDE:
            k = k.to(tl.float32)
            v = v.to(tl.float32)
        score = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        if CAPPED:
            turned = 2.0 / (1.0 + tl.exp(-2.0 * score / softcap)) - 1.0  # tanh
            score = turned * softcap
        score *= 1.4426950408889634
        visible = index[None, :] < sees[:, None]
        if WINDOW > 0:  # a window is longer than any tree is deep
            visible &= index[None, :] > (where - WINDOW)[:, None]
        if SPAN == 0:  # noqa: SIM102 - a compile-time condition
            if key + N > begin:
                bit = index - begin
                named = inside[:, None] & ((bit >= 0) & (bit < 32 * words))[None, :]
                word = tl.load(bits + (packed * words)[:, None] + (bit // 32)[None, :], mask=named, other=0)
                visible |= ((word >> (bit % 32)[None, :]) & 1) != 0
        score = tl.where(visible & there[None, :], score, float("-inf"))
        higher = tl.maximum(top, tl.max(score, 1))
        level = tl.where(higher == float("-inf"), 0.0, higher)
        weight = tl.exp2(score - level[:, None])
        fade = tl.exp2(top - level)
        mass = mass * fade + tl.sum(weight, 1)
        total = total * fade[:, None]
        total = tl.dot(weight.to(v.dtype), v, total, input_precision=PRECISION)
        top = higher
    keep = inside[:, None] & known[None, :]
    seen_any = mass > 0.0
    mass = tl.where(seen_any, mass, 1.0)
    mean = total / mass[:, None]
    line = (packed * HEADS + own_head).to(tl.int64)
    if SPLIT:
        line = line * parts + part
        tl.store(heights + line, tl.where(seen_any, top + tl.log2(mass), float("-inf")), mask=inside)
        tl.store(partial + line[:, None] * DIM + dim[None, :], mean, mask=keep & seen_any[:, None])
    else:
        tl.store(out + line[:, None] * DIM + dim[None, :], mean.to(out.dtype.element_ty), mask=keep)


@triton.jit(do_not_specialize=["lines", "parts"])
def join_parts(
    partial, heights, out, lines, parts, DIM: tl.constexpr, D: tl.constexpr, LINES: tl.constexpr, PARTS: tl.constexpr
):  # fmt: skip
    """Join the parts of some lines (heads of tokens), each weighted by its share. Parts without keys have a height of
    -inf. The order of the sum does not change with the number of parts."""
    line = tl.program_id(0) * LINES + tl.arange(0, LINES)
    there = (line < lines)[:, None]
    begin = line.to(tl.int64)[:, None] * parts
    piece = tl.arange(0, PARTS)[None, :]
    dim = tl.arange(0, D)
    top = tl.full([LINES], float("-inf"), tl.float32)
    for start in range(0, parts, PARTS):
        part = start + piece
        height = tl.load(heights + begin + part, mask=there & (part < parts), other=float("-inf"))
        top = tl.maximum(top, tl.max(height, 1))
    level = tl.where(top == float("-inf"), 0.0, top)
    mass = tl.zeros([LINES], tl.float32)
    joined = tl.zeros([LINES, D], tl.float32)
    for start in range(0, parts, PARTS):
        part = start + piece
        height = tl.load(heights + begin + part, mask=there & (part < parts), other=float("-inf"))
        written = (height > float("-inf"))[:, :, None] & (dim < DIM)[None, None, :]
        mean = tl.load(partial + (begin + part)[:, :, None] * DIM + dim[None, None, :], mask=written, other=0.0)
        share = tl.exp2(height - level[:, None])
        mass += tl.sum(share, 1)
        joined += tl.sum(mean * share[:, :, None], 1)
    joined /= tl.where(mass > 0.0, mass, 1.0)[:, None]
    spot = out + line.to(tl.int64)[:, None] * DIM + dim[None, :]
    tl.store(spot, joined.to(out.dtype.element_ty), mask=there & (dim < DIM)[None, :])


@dataclass(frozen=True, slots=True)
class Tiles:
    """The tiles of one pass, in device memory. A tile has at most `tokens` queries; contexts are split into `parts`
    parts. `order` and `tail` are for lanes, `bits` for windows."""

    tokens: int
    parts: int
    first: torch.Tensor
    count: torch.Tensor
    row: torch.Tensor
    reach: torch.Tensor
    base: torch.Tensor
    seen: torch.Tensor
    positions: torch.Tensor
    bits: torch.Tensor
    order: torch.Tensor
    tail: torch.Tensor
    tables: torch.Tensor
    header: torch.Tensor


@dataclass(frozen=True, slots=True)
class Parts:
    """The memory that holds the parts' results until they are joined. `span` is the number of keys of a part, or 0 if
    each context is split into equal parts."""

    partial: torch.Tensor
    heights: torch.Tensor
    span: int = 0


@dataclass(frozen=True, slots=True)
class Launch:
    """The options of a launch: keys read at a time, warps, and pipeline stages."""

    keys: int
    warps: int
    stages: int


def launch_of(rows: int, dim: int, wide: bool) -> Launch:
    """Return the usual launch for products of `rows` rows, over heads of `dim` elements, in float32 if `wide`. Keys
    wait for the lookup of their addresses, and only deep pipelines prefetch those. The lowest products have room for
    twice the keys, so they wait half as often; with larger heads those would fill a core's shared memory. Fixed tiles
    are never so low."""
    if rows <= LEAST and dim <= MOST_DIM and not wide:
        return Launch(2 * KEYS, 4, 2)
    few = rows <= 64
    return Launch(KEYS // 2 if wide else KEYS, 4 if few else 8, 4 if few and not wide else 2)


def rows_of(queries: int, share: int) -> int:
    """Return how many rows a product has for tiles of up to `queries` queries."""
    return int(max(LEAST, triton.next_power_of_2(queries * share)))


def attend(
    query: torch.Tensor,
    pool: torch.Tensor,
    offsets: torch.Tensor,
    out: torch.Tensor,
    tiles: Tiles,
    parts: Parts,
    layout: Layout,
    *,
    layer_offset: int,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    launch: Launch | None = None,
) -> None:
    """Write `out` [tokens, heads, head_dim] for `query`, of the same shape. `launch` replaces the usual one."""
    tokens, heads, dim = query.shape
    share, width = heads // layout.kv_heads, triton.next_power_of_2(dim)
    rows = rows_of(tiles.tokens, share)
    launch = launch or launch_of(rows, dim, query.dtype == torch.float32)
    split = tiles.parts > 1 or parts.span > 0  # with a fixed span, one kernel serves short and long contexts
    attend_tile[(len(tiles.first), layout.kv_heads, tiles.parts)](
        query,
        pool,
        offsets,
        out,
        parts.partial,
        parts.heights,
        tiles.first,
        tiles.count,
        tiles.row,
        tiles.reach,
        tiles.base,
        tiles.seen,
        tiles.positions,
        tiles.bits,
        tiles.order,
        tiles.tail,
        tiles.tables,
        tiles.header,
        layer_offset,
        heads * dim,
        scale,
        softcap,
        WINDOW=window,
        CAPPED=softcap > 0.0,
        HEADS=heads,
        SHARE=share,
        DIM=dim,
        BLOCK_SIZE=layout.block_size,
        BLOCK_STRIDE=layout.block,
        SEGMENT=layout.segment_blocks,
        M=rows,
        N=launch.keys,
        D=max(width, 16),
        SPLIT=split,
        SPAN=parts.span,
        WIDE=INTERPRETED,
        PRECISION=PRECISION,
        num_warps=launch.warps,
        num_stages=launch.stages,
    )
    if split:
        lines = tokens * heads
        join_parts[(triton.cdiv(lines, LINES),)](
            parts.partial,
            parts.heights,
            out,
            lines,
            tiles.parts,
            DIM=dim,
            D=max(width, 16),
            LINES=LINES,
            PARTS=JOINED,
            num_warps=LINES,
        )
