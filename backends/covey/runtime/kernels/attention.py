"""Attention of packed tokens over a paged pool: chains and trees, grouped-query heads, split over long contexts.

A program takes one *tile*, up to `tokens` queries of one row, with all query heads of one key head, so that a row's
keys are read once for all of them; long contexts are split among programs and joined by a second kernel. What a query
sees is said by `seen` (so many first keys of its row) and `bits` (of the keys from `base` on: a node's ancestors and
itself), as in `covey.runtime.lanes.Windows`. Everything that changes from pass to pass is in device memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from covey.runtime.kernels import INTERPRETED, PRECISION

LEAST, MOST = 16, 128  # rows of a product: queries of a tile times query heads of a key head
MOST_WIDE = 32  # the same of float32, which takes three products and twice the registers


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
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One tile, one key head, one part of its keys. `header` holds the tables' width and a token's words of bits;
    `heights` are the parts' logarithms (base 2) of summed weights."""
    tile, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    parts = tl.num_programs(2)
    queries = tl.load(count + tile)
    if queries == 0:  # the bucket is larger than the pass
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
    span = tl.cdiv(tl.cdiv(keys - lower, parts), N) * N
    start = lower + part * span
    stop = tl.minimum(start + span, keys)
    top = tl.full([M], float("-inf"), tl.float32)
    mass = tl.zeros([M], tl.float32)
    total = tl.zeros([M, D], tl.float32)
    for key in range(start, stop, N):
        index = key + tl.arange(0, N)
        there = index < stop
        block = tl.load(table + index // BLOCK_SIZE, mask=there, other=0)
        slot = tl.load(offsets + block // SEGMENT) + layer_offset + (block % SEGMENT).to(tl.int64) * BLOCK_STRIDE
        slot += head * (BLOCK_SIZE * DIM) + (index % BLOCK_SIZE) * DIM
        spot = tl.multiple_of(slot[:, None] + dim[None, :], (1, 8))
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
        if WINDOW > 0:  # a tree is never as deep as a window is long
            visible &= index[None, :] > (where - WINDOW)[:, None]
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
    found = total / mass[:, None]
    line = (packed * HEADS + own_head).to(tl.int64)
    if SPLIT:
        line = line * parts + part
        tl.store(heights + line, tl.where(seen_any, top + tl.log2(mass), float("-inf")), mask=inside)
        tl.store(partial + line[:, None] * DIM + dim[None, :], found, mask=keep)
    else:
        tl.store(out + line[:, None] * DIM + dim[None, :], found.to(out.dtype.element_ty), mask=keep)


@triton.jit
def join_parts(partial, heights, out, parts, DIM: tl.constexpr, D: tl.constexpr, P: tl.constexpr):
    """One token and head: the parts' results, weighed by their shares. Parts without keys were not written."""
    line = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, P)
    dim = tl.arange(0, D)
    height = tl.load(heights + line * parts + part, mask=part < parts, other=float("-inf"))
    top = tl.max(height, 0)
    share = tl.exp2(height - tl.where(top == float("-inf"), 0.0, top))
    written = height > float("-inf")
    spot = (line * parts + part)[:, None] * DIM + dim[None, :]
    found = tl.load(partial + spot, mask=written[:, None] & (dim < DIM)[None, :], other=0.0)
    mass = tl.sum(share, 0)
    joined = tl.sum(found * share[:, None], 0) / tl.where(mass > 0.0, mass, 1.0)
    tl.store(out + line * DIM + dim, joined.to(out.dtype.element_ty), mask=dim < DIM)


@dataclass(frozen=True, slots=True)
class Paging:
    """Where an element of the pool lies: see `covey.runtime.device.store`."""

    block_size: int
    block_stride: int
    segment: int


@dataclass(frozen=True, slots=True)
class Tiles:
    """One pass's tiles, in device memory; `tokens` is the most queries that one has."""

    tokens: int
    first: torch.Tensor
    count: torch.Tensor
    row: torch.Tensor
    reach: torch.Tensor
    base: torch.Tensor
    seen: torch.Tensor
    positions: torch.Tensor
    bits: torch.Tensor
    tables: torch.Tensor
    header: torch.Tensor


@dataclass(frozen=True, slots=True)
class Parts:
    """How many parts long contexts are split into, and where the parts' results wait to be joined."""

    count: int
    partial: torch.Tensor
    heights: torch.Tensor


@dataclass(frozen=True, slots=True)
class Launch:
    """What a launch can be told beside the work: keys that a program reads at a time, warps, and pipeline stages."""

    keys: int
    warps: int
    stages: int


def launch_of(rows: int, wide: bool) -> Launch:
    """The usual one for products of so many rows; `wide`: of float32. Keys wait for the lookups that say where they
    are, and only deep pipelines fetch those ahead."""
    few = rows <= 64
    return Launch(32 if wide else 64, 4 if few else 8, 4 if few and not wide else 2)


def rows_of(queries: int, share: int) -> int:
    """Of a product for tiles of up to so many queries."""
    return int(max(LEAST, triton.next_power_of_2(queries * share)))


def queries_of(share: int, wanted: int, wide: bool = False) -> int:
    """The most queries that a tile takes where rows have up to `wanted`; `wide`: of float32."""
    most = max(1, (MOST_WIDE if wide else MOST) // share)
    return 1 << min((wanted - 1).bit_length(), most.bit_length() - 1)


def attend(
    query: torch.Tensor,
    pool: torch.Tensor,
    offsets: torch.Tensor,
    out: torch.Tensor,
    tiles: Tiles,
    parts: Parts,
    paging: Paging,
    *,
    kv_heads: int,
    layer_offset: int,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    launch: Launch | None = None,
) -> None:
    """`out` [tokens, heads, head_dim] of `query`, alike. `launch`: another than the usual one."""
    tokens, heads, dim = query.shape
    share, width = heads // kv_heads, triton.next_power_of_2(dim)
    rows = rows_of(tiles.tokens, share)
    launch = launch or launch_of(rows, query.dtype == torch.float32)
    attend_tile[(len(tiles.first), kv_heads, parts.count)](
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
        BLOCK_SIZE=paging.block_size,
        BLOCK_STRIDE=paging.block_stride,
        SEGMENT=paging.segment,
        M=rows,
        N=launch.keys,
        D=max(width, 16),
        SPLIT=parts.count > 1,
        WIDE=INTERPRETED,
        PRECISION=PRECISION,
        num_warps=launch.warps,
        num_stages=launch.stages,
    )
    if parts.count > 1:
        join_parts[(tokens * heads,)](
            parts.partial,
            parts.heights,
            out,
            parts.count,
            DIM=dim,
            D=max(width, 16),
            P=triton.next_power_of_2(parts.count),
            num_warps=1,
        )
