"""Moving what is in KV memory: whole blocks to other blocks, slots to other slots, and slots to zero.

Memory is a `KVStore`'s: `pool` and `offsets` as described there. Ids are in device memory, int32 or int64; a negative
one is skipped, so that a captured launch serves any number of ids up to its own. Bits are copied, never computed with.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_PIECE_BYTES = 8192  # of a block, per program: four 16-byte accesses in flight for each of 128 threads
_TILE_BYTES = 8192  # of slots' heads, per program


@triton.jit(do_not_specialize_on_alignment=["sources", "destinations"])  # one variant for all: none compiles in service
def _blocks_kernel(
    pool,
    offsets,
    sources,
    destinations,
    SEGMENT_BLOCKS: tl.constexpr,
    BLOCK_STRIDE: tl.constexpr,
    PIECE: tl.constexpr,
):
    source = tl.load(sources + tl.program_id(0)).to(tl.int64)
    destination = tl.load(destinations + tl.program_id(0)).to(tl.int64)
    wanted = (source >= 0) & (destination >= 0)
    source = tl.maximum(source, 0)
    destination = tl.maximum(destination, 0)
    layer = tl.program_id(1).to(tl.int64) * (SEGMENT_BLOCKS * BLOCK_STRIDE)
    # offsets are multiples of 8 elements; only with that said are accesses 16 bytes wide
    old = tl.multiple_of(tl.load(offsets + source // SEGMENT_BLOCKS), 8) + layer
    new = tl.multiple_of(tl.load(offsets + destination // SEGMENT_BLOCKS), 8) + layer
    old += (source % SEGMENT_BLOCKS) * BLOCK_STRIDE
    new += (destination % SEGMENT_BLOCKS) * BLOCK_STRIDE
    at = tl.program_id(2) * PIECE + tl.arange(0, PIECE)
    mask = (at < BLOCK_STRIDE) & wanted
    tl.store(pool + new + at, tl.load(pool + old + at, mask=mask), mask=mask)


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["slots"])
def _slots_kernel(
    pool,
    offsets,
    slots,
    staged,
    count,
    HEADS: tl.constexpr,
    SEGMENT_BLOCKS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE: tl.constexpr,
    WIDTH: tl.constexpr,
    MODE: tl.constexpr,
):
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    layer = tl.program_id(1).to(tl.int64)
    head = tl.program_id(2)
    slot = tl.load(slots + row, mask=row < count, other=-1).to(tl.int64)
    wanted = slot >= 0
    block = tl.maximum(slot, 0) // BLOCK_SIZE
    start = tl.multiple_of(tl.load(offsets + block // SEGMENT_BLOCKS), 8)
    start += (layer * SEGMENT_BLOCKS + block % SEGMENT_BLOCKS) * (HEADS * BLOCK_SIZE * HEAD_DIM)
    start += head * (BLOCK_SIZE * HEAD_DIM) + (tl.maximum(slot, 0) % BLOCK_SIZE) * HEAD_DIM
    column = tl.arange(0, WIDTH)
    mask = wanted[:, None] & (column < HEAD_DIM)[None, :]
    place = pool + start[:, None] + column[None, :]
    if MODE == "clear":
        tl.store(place, tl.zeros([TILE, WIDTH], pool.dtype.element_ty), mask=mask)
    else:
        held = ((layer * HEADS + head) * count + row) * HEAD_DIM
        held = staged + held[:, None] + column[None, :]
        if MODE == "gather":
            tl.store(held, tl.load(place, mask=mask), mask=mask)
        else:
            tl.store(place, tl.load(held, mask=mask), mask=mask)


def move_blocks(
    pool: torch.Tensor,
    offsets: torch.Tensor,
    sources: torch.Tensor,
    destinations: torch.Tensor,
    *,
    layers: int,
    segment_blocks: int,
    block_stride: int,
) -> None:
    """Copy block `sources[i]` to block `destinations[i]` in every layer, in one launch. No block may be a destination
    twice, or both source and destination: programs run in any order."""
    if not len(sources):
        return
    piece = min(_PIECE_BYTES // pool.itemsize, triton.next_power_of_2(block_stride))
    grid = (len(sources), layers, triton.cdiv(block_stride, piece))
    _blocks_kernel[grid](
        pool,
        offsets,
        sources,
        destinations,
        SEGMENT_BLOCKS=segment_blocks,
        BLOCK_STRIDE=block_stride,
        PIECE=piece,
        num_warps=4,
    )


def copy_slots(
    pool: torch.Tensor,
    offsets: torch.Tensor,
    sources: torch.Tensor,
    destinations: torch.Tensor,
    staged: torch.Tensor,
    *,
    layers: int,
    heads: int,
    segment_blocks: int,
    block_size: int,
    head_dim: int,
) -> None:
    """Copy slot `sources[i]` to slot `destinations[i]` in every layer, for all `heads` (keys' and values' together).

    All are read before any is written: `staged`, of the pool's type and at least layers * heads * len(sources) *
    head_dim elements, holds them between two launches. A pair with one negative id must have two.
    """
    shape = (layers, heads, segment_blocks, block_size, head_dim)
    _launch_slots("gather", pool, offsets, sources, staged, *shape)
    _launch_slots("scatter", pool, offsets, destinations, staged, *shape)


def clear_slots(
    pool: torch.Tensor,
    offsets: torch.Tensor,
    slots: torch.Tensor,
    *,
    layers: int,
    heads: int,
    segment_blocks: int,
    block_size: int,
    head_dim: int,
) -> None:
    """Set slots to zero in every layer, for all `heads` (keys' and values' together)."""
    _launch_slots("clear", pool, offsets, slots, pool, layers, heads, segment_blocks, block_size, head_dim)


def _launch_slots(
    mode: str,
    pool: torch.Tensor,
    offsets: torch.Tensor,
    slots: torch.Tensor,
    staged: torch.Tensor,
    layers: int,
    heads: int,
    segment_blocks: int,
    block_size: int,
    head_dim: int,
) -> None:
    count = len(slots)
    if not count:
        return
    width = triton.next_power_of_2(head_dim)
    tile = max(1, _TILE_BYTES // (pool.itemsize * width))
    _slots_kernel[(triton.cdiv(count, tile), layers, heads)](
        pool,
        offsets,
        slots,
        staged,
        count,
        HEADS=heads,
        SEGMENT_BLOCKS=segment_blocks,
        BLOCK_SIZE=block_size,
        HEAD_DIM=head_dim,
        TILE=tile,
        WIDTH=width,
        MODE=mode,
        num_warps=4,
    )
