"""KV memory on a device that grows and shrinks while recorded CUDA graphs keep using it.

    pool --> segment 0        segment 1     segment 2 ...     each: [layers, segment_blocks, 2 * kv_heads,
             |<-- offsets[1] -->|                                    block_size, head_dim], keys' heads first
             |<-------- offsets[2] -------->|

A kernel gets `pool` and `offsets`, whose addresses never change. Element (layer, block, head, slot, d) is at:
pool + offsets[block // segment_blocks] + layer * layout.layer + (block % segment_blocks) * layout.block
+ head * layout.head + slot * head_dim + d. So a recorded graph sees a new segment at its next replay.

This module knows no sequences and no owners: `BlockPool` decides what may be moved or freed. Methods that write use the
current stream, which must be the stream of the passes. Do not call them while a graph is being recorded.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
import torch

from covey.contracts.types import Ints
from covey.gpu.kernels import moves
from covey.gpu.kernels.layout import Layout

_LOG = logging.getLogger(__name__)

ALIGNMENT = 8
"""Offsets are multiples of this many elements: kernels rely on it for accesses of 16 bytes."""


@dataclass(slots=True)
class _Segment:
    """An allocation of device memory. On a CUDA device it has its own memory pool, `home`."""

    memory: torch.Tensor
    home: object | None


class KVStore:
    """Keys and values of `blocks` blocks, in segments; not safe to call from two threads at once."""

    def __init__(
        self, layout: Layout, *, segments: int = 1, most_segments: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.layout, self.most_segments = layout, most_segments
        self.dtype, self.device = dtype, device
        self.offsets = torch.zeros(most_segments, dtype=torch.int64, device=device)
        self._segments = [self._allocate()]
        self.pool = self._segments[0].memory.view(-1)
        rest = (segments - 1) * layout.segment_blocks
        if self.grow(rest) < rest:
            raise torch.OutOfMemoryError(f"KV memory: {segments} segments of {self.segment_bytes} bytes do not fit")
        self._compile()

    @property
    def blocks(self) -> int:
        """Return how many blocks there are now. Ids below this number may be used."""
        return self.segments * self.layout.segment_blocks

    @property
    def segments(self) -> int:
        return len(self._segments)

    @property
    def bytes_per_block(self) -> int:
        return self.layout.layers * self.layout.block * self.dtype.itemsize

    @property
    def segment_bytes(self) -> int:
        """Return the bytes of a segment. On a CUDA device PyTorch takes 20 MiB for a segment of 1 to 10 MiB, and rounds
        larger ones up to 2 MiB. So make segments large."""
        return self.layout.segment_blocks * self.bytes_per_block

    def segment(self, index: int) -> torch.Tensor:
        """Return a view [layers, segment_blocks, 2 * kv_heads, block_size, head_dim]. Drop it before `shrink`."""
        return self._segments[index].memory

    def grow(self, blocks: int) -> int:
        """Add whole, zeroed segments of at most `blocks` blocks in all, while there is memory. Returns how many blocks
        were added."""
        before = self.blocks
        for _ in range(min(blocks // self.layout.segment_blocks, self.most_segments - len(self._segments))):
            try:
                segment = self._allocate()
            except torch.OutOfMemoryError as error:
                _LOG.warning("KV memory grows by only %d of %d blocks: %s", self.blocks - before, blocks, error)
                break
            self.offsets[len(self._segments)] = self._offset(segment.memory)
            self._segments.append(segment)
        return self.blocks - before

    def shrink(self, blocks: int) -> int:
        """Give the last segments, of at most `blocks` blocks in all, back to the device; never the first. Returns how
        many blocks went. Their contents are lost. Waits for all work on the device."""
        count = min(blocks // self.layout.segment_blocks, len(self._segments) - 1)
        if not count:
            return 0
        kept = len(self._segments) - count
        self.offsets[kept : len(self._segments)] = 0
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # a running pass on any stream may still read them
        while len(self._segments) > kept:
            segment = self._segments.pop()
            del segment.memory  # before its pool, which frees only unused memory
            segment.home = None
        return count * self.layout.segment_blocks

    def copy_slots(self, sources: Ints, destinations: Ints) -> None:
        """Copy keys and values of all layers between slots. All are read before any is written."""
        old, new = self._ids(sources, destinations)
        layout = self.layout
        size = layout.layers * 2 * layout.kv_heads * len(sources) * layout.head_dim
        staged = torch.empty(size, dtype=self.dtype, device=self.device)
        moves.copy_slots(self.pool, self.offsets, old, new, staged, layout)

    def read_slots(self, slots: Ints, first: int) -> torch.Tensor:
        """Return [layers, heads, slots, head_dim] of the layers from `first` on."""
        (ids,) = self._ids(slots)
        layout = self.layout
        shape = layout.layers - first, 2 * layout.kv_heads, len(slots), layout.head_dim
        found = torch.empty(shape, dtype=self.dtype, device=self.device)
        moves.read_slots(self.pool, self.offsets, ids, found, layout, first)
        return found

    def write_slots(self, slots: torch.Tensor, values: torch.Tensor, first: int) -> None:
        """Write the same layout to slots; -1 is no slot. May be recorded."""
        moves.write_slots(self.pool, self.offsets, slots, values, self.layout, first)

    def clear_slots(self, slots: Ints) -> None:
        """Set keys and values of these slots to zero in all layers."""
        (ids,) = self._ids(slots)
        moves.clear_slots(self.pool, self.offsets, ids, self.layout)

    def move_blocks(self, sources: Ints, destinations: Ints) -> None:
        """Copy whole blocks of all layers. No destination may be given twice, or be a source."""
        old, new = self._ids(sources, destinations)
        moves.move_blocks(self.pool, self.offsets, old, new, self.layout)

    def _compile(self) -> None:
        """Launch every kernel once, on zeros: a first launch takes a second, for which no request should wait."""
        first = np.zeros(1, np.int32)
        self.move_blocks(first, first)
        self.copy_slots(first, first)
        self.clear_slots(first)

    def _allocate(self) -> _Segment:
        """Return a zeroed segment: unused memory must be finite, because NaN gets through every mask.

        Each has its own memory pool, because PyTorch's allocator gives back only whole allocations to the device. In
        the common pool a segment may share one with other tensors, or be reused for them once freed. Emptying the
        common cache as well would cost every other tensor a new allocation.
        """
        shape = self.layout.shape
        if self.device.type != "cuda":
            return _Segment(torch.zeros(shape, dtype=self.dtype, device=self.device), None)
        with torch.cuda.device(self.device):
            home = torch.cuda.MemPool()
            with torch.cuda.use_mem_pool(home):
                return _Segment(torch.zeros(shape, dtype=self.dtype, device=self.device), home)

    def _offset(self, memory: torch.Tensor) -> int:
        offset, rest = divmod(memory.data_ptr() - self.pool.data_ptr(), self.dtype.itemsize)
        if rest or offset % ALIGNMENT:
            raise RuntimeError(f"KV memory: an allocation is not aligned to {ALIGNMENT} elements of {self.dtype}")
        return offset

    def _ids(self, *ids: Ints) -> tuple[torch.Tensor, ...]:
        """Copy the ids to the device in one transfer."""
        return torch.from_numpy(np.stack(ids).astype(np.int64)).to(self.device).unbind(0)
