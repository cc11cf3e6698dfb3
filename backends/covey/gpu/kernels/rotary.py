"""The kernel between the product that makes queries, keys and values, and attention. In one pass over that product it
norms heads if the family does, applies rotary positions, and writes keys and values to their slots."""

from __future__ import annotations

import triton
import triton.language as tl

from covey.gpu.kernels.layout import slot_start


@triton.jit
def turn_and_keep(
    qkv,
    queries,
    pool,
    offsets,
    slots,
    positions,
    cosines,
    sines,
    query_norm,
    key_norm,
    layer_offset,
    epsilon,
    NORMED: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_STRIDE: tl.constexpr,
    SEGMENT: tl.constexpr,
    D: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Turn `GROUP` heads of one token; write queries to `queries`, keys and values to the pool. `sines` are signed for
    a sum of x and x rolled by half a head. A token with slot -1 pads the bucket and is not kept."""
    token = tl.program_id(0)
    head = tl.program_id(1) * GROUP + tl.arange(0, GROUP)
    dim = tl.arange(0, D)
    partner = (dim + DIM // 2) % DIM
    known = dim < DIM
    mask = (head < HEADS + 2 * KV_HEADS)[:, None] & known[None, :]
    line = qkv + (token * (HEADS + 2 * KV_HEADS) + head)[:, None] * DIM
    x = tl.load(line + dim[None, :], mask=mask, other=0.0).to(tl.float32)
    turns = head < HEADS + KV_HEADS
    y = tl.load(line + partner[None, :], mask=mask & turns[:, None], other=0.0).to(tl.float32)
    at = tl.load(positions + token).to(tl.int64) * DIM
    cosine = tl.load(cosines + at + dim, mask=known, other=0.0).to(tl.float32)
    sine = tl.load(sines + at + dim, mask=known, other=0.0).to(tl.float32)
    is_query = (head < HEADS)[:, None]
    if NORMED:
        size = tl.rsqrt(tl.sum(x * x, 1) / DIM + epsilon)[:, None]
        mine = tl.where(is_query, tl.load(query_norm + dim, mask=known, other=0.0).to(tl.float32)[None, :],
                        tl.load(key_norm + dim, mask=known, other=0.0).to(tl.float32)[None, :])  # fmt: skip
        other = tl.where(is_query, tl.load(query_norm + partner, mask=known, other=0.0).to(tl.float32)[None, :],
                         tl.load(key_norm + partner, mask=known, other=0.0).to(tl.float32)[None, :])  # fmt: skip
        x = tl.where(turns[:, None], x * size * mine, x)
        y = y * size * other
    x = tl.where(turns[:, None], x * cosine[None, :] + y * sine[None, :], x)
    target = queries + (token * HEADS + head)[:, None] * DIM + dim[None, :]
    tl.store(target, x.to(queries.dtype.element_ty), mask=mask & is_query)
    slot = tl.load(slots + token)
    if slot >= 0:
        spot = slot_start(offsets, slot // BLOCK_SIZE, slot % BLOCK_SIZE, BLOCK_STRIDE, SEGMENT, DIM) + layer_offset
        place = spot + ((head - HEADS) * (BLOCK_SIZE * DIM))[:, None] + dim[None, :]
        place = tl.multiple_of(place, (1, 8))
        tl.store(pool + place, x.to(pool.dtype.element_ty), mask=mask & (head >= HEADS)[:, None])
