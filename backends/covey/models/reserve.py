"""KV memory on a CPU that grows and shrinks where it is: addresses for the largest pool, pages for the blocks in use.

    each plane    |<-- blocks: have pages -->|<-- room to grow: addresses only -->| spare blocks: pages when used |

A plane is what lies together of a pool, such as one layer's keys. A slot's address never changes and nothing is copied
when the pool grows: tensors over the whole of it stay valid. It is an anonymous private mapping: pages that are given
up are the system's again at once, and are zero when they come back, which unused KV memory must be. Pages come and go
in a thread of their own, so that no pass waits for them.

Knows no sequences, no owners and no numbers. A block must be free before it is given up, and is not to be used before
`blocks` says that it is there.
"""

from __future__ import annotations

import ctypes
import errno
import math
import mmap
import os
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import numpy as np

from covey.contracts.types import Ints
from covey.process.worker import Thread

POPULATE_WRITE, HUGE_PAGES, NO_HUGE_PAGES = 23, 14, 15  # MADV_POPULATE_WRITE (Linux 5.14), ...
NO_RESERVE = 0x4000  # MAP_NORESERVE
PIECE = 8 << 20  # bytes that get pages at once: what is there so far can be used meanwhile
CACHED = 1 << 19  # bytes of blocks that are moved at once
SPARE = 64 << 20  # bytes that are left to everybody else
MEMORY = Path("/proc/meminfo")


class Reserve:
    """`bytes`: [planes, blocks, bytes of a block in a plane], with pages for `blocks` blocks; one more lies behind
    the room to grow, the last one of each plane. One thread calls."""

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
        # numpy copies a row at once, torch's `index_copy_` its elements one by one; and in the thread that calls
        self.bytes = np.frombuffer(self.map, np.uint8).reshape(planes, total, block)
        self._start = self.bytes.ctypes.data
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        # Where blocks come and go a huge page would hold thousands of them.
        self._libc.madvise(self._start, len(self.map), HUGE_PAGES if most <= blocks else NO_HUGE_PAGES)
        self.blocks = 0
        self._afford(blocks)  # pages that are not there would end this process, or another one
        self._worker = Thread("kv-pages")
        self._moving: Future[None] | None = None
        self._add(blocks)

    @property
    def bytes_per_block(self) -> int:
        return self._planes * self._block

    def grow(self, blocks: int) -> int:
        """Have pages for so many blocks before long. Returns how many can be used by now; raises MemoryError where
        there is no memory for them."""
        if not self._settled():
            return self.blocks
        if blocks > self.blocks:
            self._afford(min(blocks, self.most))
            self._moving = self._worker.submit(self._add, min(blocks, self.most))
        return self.blocks

    def shrink(self, blocks: int) -> bool:
        """Give up the pages of all but the first blocks before long. Returns whether that is done."""
        if not self._settled():
            return False
        if blocks < self.blocks:
            last, self.blocks = self.blocks, blocks
            self._moving = self._worker.submit(self._drop, last)
            return False
        return True

    def move_blocks(self, sources: Ints, destinations: Ints) -> None:
        """Copy whole blocks, a piece that stays in a core's cache at a time. No destination may be given twice, or be
        a source."""
        size = max(1, CACHED // self._block)
        for plane in self.bytes:
            for start in range(0, len(sources), size):
                plane[destinations[start : start + size]] = plane[sources[start : start + size]]

    def _afford(self, blocks: int) -> None:
        """Raise MemoryError where there is no memory for so many blocks."""
        wanted, left = (blocks - self.blocks) * self.bytes_per_block, available() - SPARE
        if wanted > left:
            raise MemoryError(f"the KV pool is to grow by {wanted >> 20} MB, and {max(0, left) >> 20} MB are left")

    def _settled(self) -> bool:
        """Return whether no pages are on their way. Raises MemoryError where they did not come."""
        if self._moving is not None:
            if not self._moving.done():
                return False
            done, self._moving = self._moving, None
            done.result()
        return True

    def _add(self, blocks: int) -> None:
        step = self._up(max(1, PIECE // self.bytes_per_block))
        for start in range(self.blocks, blocks, step):
            stop = min(start + step, blocks)
            self._each(self._up(start), self._up(stop), self._populate)
            self.blocks = stop

    def _drop(self, last: int) -> None:
        whole = self._up(self.blocks)
        self.bytes[:, self.blocks : whole] = 0  # they share pages with blocks that stay
        self._each(whole, self._up(last), self._release)

    def _each(self, start: int, stop: int, act: Callable[[int, int], None]) -> None:
        """Call `act` for the pages of these blocks in each plane."""
        if start < stop:
            for plane in range(self._planes):
                act(self._start + plane * self._plane + start * self._block, (stop - start) * self._block)

    def _populate(self, address: int, size: int) -> None:
        if self._libc.madvise(address, size, POPULATE_WRITE):
            problem = ctypes.get_errno()
            if problem != errno.EINVAL:
                raise MemoryError(f"no pages for KV memory: {os.strerror(problem)}")
            ctypes.memset(address, 0, size)  # the kernel is older

    def _release(self, address: int, size: int) -> None:
        if self._libc.madvise(address, size, mmap.MADV_DONTNEED):
            raise MemoryError(f"KV memory is not given back: {os.strerror(ctypes.get_errno())}")

    def _up(self, blocks: int) -> int:
        return -(-blocks // self._grain) * self._grain


def available() -> int:
    """Return how many bytes the system can still give."""
    line = next(line for line in MEMORY.read_text().splitlines() if line.startswith("MemAvailable"))
    return int(line.split()[1]) << 10
