"""Moves the contents of KV memory: whole blocks to other blocks, and slots to other slots. Clears slots, and reads and
writes some of their layers.

`pool` and `offsets` are those of a `KVStore`. Ids are int64, in device memory. Kernels copy bits without computing.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from covey.gpu.kernels.layout import Layout, slot_start

_PIECE_BYTES = 8192  # of a block, moved by one program: four 16-byte accesses in flight for each of 128 threads
_TILE_BYTES = 8192  # of slots' heads, cleared by one program


@triton.jit(do_not_specialize_on_alignment=["sources", "destinations"])  # one variant: none compiles during a request
def _blocks_kernel(
    pool,
    offsets,
    sources,
    destinations,
    SEGMENT_BLOCKS: tl.constexpr,
    BLOCK_STRIDE: tl.constexpr,
    PIECE: tl.constexpr,
):
    source = tl.load(sources + tl.program_id(0))
    destination = tl.load(destinations + tl.program_id(0))
    layer = tl.program_id(1).to(tl.int64) * (SEGMENT_BLOCKS * BLOCK_STRIDE)
    # the compiler makes accesses 16 bytes wide only if it knows that offsets are multiples of 8 elements
    old = tl.multiple_of(tl.load(offsets + source // SEGMENT_BLOCKS), 8) + layer
    new = tl.multiple_of(tl.load(offsets + destination // SEGMENT_BLOCKS), 8) + layer
    old += (source % SEGMENT_BLOCKS) * BLOCK_STRIDE
    new += (destination % SEGMENT_BLOCKS) * BLOCK_STRIDE
    at = tl.program_id(2) * PIECE + tl.arange(0, PIECE)
    mask = at < BLOCK_STRIDE
    tl.store(pool + new + at, tl.load(pool + old + at, mask=mask), mask=mask)


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["slots"])
def _slots_kernel(
    pool,
    offsets,
    slots,
    staged,
    count,
    FIRST: tl.constexpr,
    HEADS: tl.constexpr,
    SEGMENT_BLOCKS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_STRIDE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE: tl.constexpr,
    WIDTH: tl.constexpr,
    MODE: tl.constexpr,
):
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    layer = tl.program_id(1).to(tl.int64)
    head = tl.program_id(2)
    slot = tl.load(slots + row, mask=row < count, other=0)
    safe = tl.maximum(slot, 0)
    start = slot_start(offsets, safe // BLOCK_SIZE, safe % BLOCK_SIZE, BLOCK_STRIDE, SEGMENT_BLOCKS, HEAD_DIM)
    start += (FIRST + layer) * (SEGMENT_BLOCKS * BLOCK_STRIDE) + head * (BLOCK_SIZE * HEAD_DIM)
    column = tl.arange(0, WIDTH)
    mask = ((row < count) & (slot >= 0))[:, None] & (column < HEAD_DIM)[None, :]
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
    pool: torch.Tensor, offsets: torch.Tensor, sources: torch.Tensor, destinations: torch.Tensor, layout: Layout
) -> None:
    """Copy block `sources[i]` to block `destinations[i]` in every layer, in one launch. Programs run in any order, so
    no block may be a destination twice, or both a source and a destination."""
    if not len(sources):
        return
    piece = min(_PIECE_BYTES // pool.itemsize, triton.next_power_of_2(layout.block))
    _blocks_kernel[(len(sources), layout.layers, triton.cdiv(layout.block, piece))](
        pool,
        offsets,
        sources,
        destinations,
        SEGMENT_BLOCKS=layout.segment_blocks,
        BLOCK_STRIDE=layout.block,
        PIECE=piece,
        num_warps=4,
    )


def copy_slots(
    pool: torch.Tensor,
    offsets: torch.Tensor,
    sources: torch.Tensor,
    destinations: torch.Tensor,
    staged: torch.Tensor,
    layout: Layout,
) -> None:
    """Copy keys and values of slot `sources[i]` to slot `destinations[i]` in every layer.

    All are read before any is written. In between, `staged` holds them: it has the pool's type and at least
    layers * 2 * kv_heads * len(sources) * head_dim elements.
    """
    _launch_slots("gather", pool, offsets, sources, staged, layout)
    _launch_slots("scatter", pool, offsets, destinations, staged, layout)


def clear_slots(pool: torch.Tensor, offsets: torch.Tensor, slots: torch.Tensor, layout: Layout) -> None:
    """Set keys and values of slots to zero in every layer."""
    _launch_slots("clear", pool, offsets, slots, pool, layout)


def read_slots(
    pool: torch.Tensor, offsets: torch.Tensor, slots: torch.Tensor, staged: torch.Tensor, layout: Layout, first: int
) -> None:
    """Copy the layers from `first` on of slots to `staged` [layers, heads, slots, head_dim]."""
    _launch_slots("gather", pool, offsets, slots, staged, layout, first)


def write_slots(
    pool: torch.Tensor, offsets: torch.Tensor, slots: torch.Tensor, staged: torch.Tensor, layout: Layout, first: int
) -> None:
    """Copy `staged` [layers, heads, slots, head_dim] to the layers from `first` on of slots; -1 is no slot."""
    _launch_slots("scatter", pool, offsets, slots, staged, layout, first)


def _launch_slots(
    mode: str,
    pool: torch.Tensor,
    offsets: torch.Tensor,
    slots: torch.Tensor,
    staged: torch.Tensor,
    layout: Layout,
    first: int = 0,
) -> None:
    count, heads = len(slots), 2 * layout.kv_heads
    if not count:
        return
    width = triton.next_power_of_2(layout.head_dim)
    tile = max(1, _TILE_BYTES // (pool.itemsize * width))
    _slots_kernel[(triton.cdiv(count, tile), layout.layers - first, heads)](
        pool,
        offsets,
        slots,
        staged,
        count,
        FIRST=first,
        HEADS=heads,
        SEGMENT_BLOCKS=layout.segment_blocks,
        BLOCK_SIZE=layout.block_size,
        BLOCK_STRIDE=layout.block,
        HEAD_DIM=layout.head_dim,
        TILE=tile,
        WIDTH=width,
        MODE=mode,
        num_warps=4,
    )
