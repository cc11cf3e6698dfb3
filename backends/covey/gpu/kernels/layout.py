"""The address of an element of KV memory, defined once for all kernels: see `covey.gpu.store`."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl


@dataclass(frozen=True, slots=True)
class Layout:
    """Segments of `segment_blocks` blocks, each [layers, segment_blocks, 2 * kv_heads, block_size, head_dim], keys'
    heads first."""

    layers: int
    kv_heads: int
    head_dim: int
    block_size: int
    segment_blocks: int

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        """Return the shape of a segment."""
        return self.layers, self.segment_blocks, 2 * self.kv_heads, self.block_size, self.head_dim

    @property
    def head(self) -> int:
        """Return the number of elements from one head to the next."""
        return self.block_size * self.head_dim

    @property
    def block(self) -> int:
        """Return the stride from one block of a segment to the next."""
        return 2 * self.kv_heads * self.head

    @property
    def layer(self) -> int:
        """Return the stride from one layer to the next."""
        return self.segment_blocks * self.block


@triton.jit
def slot_start(offsets, block, inner, BLOCK_STRIDE: tl.constexpr, SEGMENT: tl.constexpr, DIM: tl.constexpr):
    """Return the offset in the pool, in elements, of the first head in layer 0 of slots `inner` of blocks."""
    segment = tl.multiple_of(tl.load(offsets + block // SEGMENT), 8)  # `store.ALIGNMENT`
    return segment + (block % SEGMENT).to(tl.int64) * BLOCK_STRIDE + inner * DIM
