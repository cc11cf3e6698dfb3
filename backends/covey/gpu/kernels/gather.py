"""Keys and values of one row brought together in position order, for a library that reads them so."""

from __future__ import annotations

import triton
import triton.language as tl

from covey.gpu.kernels.layout import slot_start

TOGETHER = 16  # slots of a program


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["slots", "count"])
def gather_row(
    pool,
    offsets,
    slots,
    out,
    count,
    layer_offset,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_STRIDE: tl.constexpr,
    SEGMENT: tl.constexpr,
    D: tl.constexpr,
    S: tl.constexpr,
):
    """Write `out` [heads of keys and of values, count, DIM]: each program one head's `S` slots."""
    head = tl.program_id(1)
    at = tl.program_id(0) * S + tl.arange(0, S)
    inside = at < count
    dim = tl.arange(0, D)
    slot = tl.load(slots + at, mask=inside, other=0)
    spot = slot_start(offsets, slot // BLOCK_SIZE, slot % BLOCK_SIZE, BLOCK_STRIDE, SEGMENT, DIM)
    spot += layer_offset + head * (BLOCK_SIZE * DIM)
    mask = inside[:, None] & (dim < DIM)[None, :]
    source = tl.multiple_of(spot[:, None] + dim[None, :], (1, 8))
    line = (head.to(tl.int64) * count + at) * DIM
    target = tl.multiple_of(line[:, None] + dim[None, :], (1, 8))
    tl.store(out + target, tl.load(pool + source, mask=mask, other=0.0), mask=mask)
