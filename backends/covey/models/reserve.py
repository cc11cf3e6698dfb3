"""KV memory on a CPU that grows and shrinks in place. It has addresses for the largest pool, and pages for used blocks.

    each plane    |<-- blocks: pages when first used -->|<-- room to grow -->| spare blocks |

A plane is a contiguous part of a pool, such as one layer's keys. A slot's address never changes, and growth copies
nothing, so tensors over the whole pool stay valid. The memory is an anonymous private mapping. The system gets pages
back at once, and pages that return are zero, as unused KV memory must be. A separate thread gives them back, so that no
pass waits.

Knows no sequences, no owners and no contents. A block must be free before its pages are given back, and only blocks
below `blocks` may be used.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
from concurrent.futures import Future

import numpy as np

from covey.contracts.types import Ints
from covey.process import footprint
from covey.process.worker import Thread

HUGE_PAGES, NO_HUGE_PAGES = 14, 15  # MADV_HUGEPAGE, MADV_NOHUGEPAGE
NO_RESERVE = 0x4000  # MAP_NORESERVE
CACHED = 1 << 19  # bytes of blocks that are moved at once
SPARE = 64 << 20  # bytes that are left to everybody else


class Reserve:
    """`bytes` is [planes, blocks, bytes of a block in a plane]. The first `blocks` blocks may be used. Each plane ends
    with one more usable block, after the room to grow. One thread calls."""

    def __init__(self, planes: int, block: int, *, blocks: int, most: int) -> None:
        self._block = block
        self._grain = mmap.PAGESIZE // math.gcd(mmap.PAGESIZE, block)  # blocks that fill whole pages
        self.most = self._up(most)
        self._planes = planes
        total = self.most + self._up(1)
        self._plane = total * block
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
        try:
            self.map = mmap.mmap(-1, planes * self._plane, flags=flags)
        except OSError as error:
            raise MemoryError(f"no addresses for KV memory of {most} blocks: {error}") from error
        # numpy copies a whole row at once, in the calling thread; torch's `index_copy_` copies single elements
        self.bytes = np.frombuffer(self.map, np.uint8).reshape(planes, total, block)
        self._start = self.bytes.ctypes.data
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        # In a pool that shrinks, a huge page would keep thousands of blocks alive.
        self._libc.madvise(self._start, len(self.map), HUGE_PAGES if most <= blocks else NO_HUGE_PAGES)
        self.blocks = blocks
        self._worker = Thread("kv-pages")
        self._moving: Future[None] | None = None

    @property
    def bytes_per_block(self) -> int:
        return self._planes * self._block

    def grow(self, blocks: int) -> int:
        """Grow to `blocks`. Return how many can be used now. Raises MemoryError if memory is missing."""
        if self._settled() and blocks > self.blocks:
            wanted = (min(blocks, self.most) - self.blocks) * self.bytes_per_block
            left = footprint.available() - SPARE
            if wanted > left:
                raise MemoryError(f"the KV pool is to grow by {wanted >> 20} MB, and {max(0, left) >> 20} MB are left")
            self.blocks = min(blocks, self.most)
        return self.blocks

    def shrink(self, blocks: int) -> bool:
        """Start to give back the pages of all but the first blocks. Return whether that is done."""
        if not self._settled():
            return False
        if blocks < self.blocks:
            last, self.blocks = self.blocks, blocks
            self._moving = self._worker.submit(self._drop, last)
            return False
        return True

    def move_blocks(self, sources: Ints, destinations: Ints) -> None:
        """Copy whole blocks, in pieces that fit a core's cache. Destinations must differ from each other and from all
        sources."""
        size = max(1, CACHED // self._block)
        for plane in self.bytes:
            for start in range(0, len(sources), size):
                plane[destinations[start : start + size]] = plane[sources[start : start + size]]

    def clear(self) -> None:
        """Set everything to zero by giving back all pages."""
        self._release(0, len(self.map))

    def _settled(self) -> bool:
        """Return whether all pages have been given back. Raises MemoryError if that failed."""
        if self._moving is not None:
            if not self._moving.done():
                return False
            done, self._moving = self._moving, None
            done.result()
        return True

    def _drop(self, last: int) -> None:
        whole, last = self._up(self.blocks), self._up(last)
        self.bytes[:, self.blocks : whole] = 0  # they share pages with blocks that stay
        for plane in range(self._planes if whole < last else 0):
            self._release(plane * self._plane + whole * self._block, (last - whole) * self._block)

    def _release(self, offset: int, size: int) -> None:
        if self._libc.madvise(self._start + offset, size, mmap.MADV_DONTNEED):
            raise MemoryError(f"KV memory is not given back: {os.strerror(ctypes.get_errno())}")

    def _up(self, blocks: int) -> int:
        return -(-blocks // self._grain) * self._grain
