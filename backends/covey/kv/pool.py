"""The block pool: every block is free, kept, or owned by one or more sequences.

    free   never used, or forgotten: on the free list
    kept   without owner, but in the prefix cache by its hash: reused by a prompt that starts the same, or evicted,
           oldest first, when the free list is empty, or when memory is short and no block on it was ever used
    owned  reference count above zero

Knows no tensors and no requests: callers hold the block ids.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from covey.contracts.types import Ints

BlockHash = bytes


def chain_hashes(
    tokens: Ints, block_size: int, tenant: str, parent: BlockHash = b"", start: int = 0
) -> list[BlockHash]:
    """Return hashes of the full blocks of `tokens` from block `start` on. A block's hash covers all tokens before it
    and the tenant, so equal hashes mean equal KV."""
    previous = parent or hashlib.blake2b(tenant.encode(), digest_size=16).digest()
    hashes = []
    for block in range(start, len(tokens) // block_size):
        span = np.ascontiguousarray(tokens[block * block_size : (block + 1) * block_size], np.int32)
        previous = hashlib.blake2b(previous + span.tobytes(), digest_size=16).digest()
        hashes.append(previous)
    return hashes


class BlockPool:
    """Owns the reference counts and the hash index of `total` blocks."""

    def __init__(self, total: int, roomy: Callable[[], bool] = lambda: True) -> None:
        """`roomy` says whether there is memory to spare for blocks that were never used."""
        self.total, self._roomy = total, roomy
        self._used = 0  # how many of the first blocks have been used
        self._free = list(range(total - 1, -1, -1))
        self._owners = np.zeros(total, np.int32)
        self._hash_of: dict[int, BlockHash] = {}
        self._block_of: dict[BlockHash, int] = {}
        self._kept: OrderedDict[int, None] = OrderedDict()

    @property
    def available(self) -> int:
        """Return how many blocks `take` can hand out."""
        return len(self._free) + len(self._kept)

    @property
    def kept(self) -> int:
        return len(self._kept)

    @property
    def owned(self) -> int:
        return self.total - self.available

    def find(self, hashes: Sequence[BlockHash]) -> list[int]:
        """Return the longest run of known blocks from the first hash on. Does not mutate."""
        blocks = []
        for key in hashes:
            block = self._block_of.get(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Add an owner to blocks that `find` returned."""
        for block in blocks:
            if self._owners[block] == 0:
                del self._kept[block]
            self._owners[block] += 1

    def take(self, count: int) -> list[int] | None:
        """Return `count` blocks of unknown contents, owned once each. If there are fewer, change nothing and return
        None."""
        if count > self.available:
            return None
        blocks = []
        for _ in range(count):
            if self._free and (not self._kept or self._free[-1] < self._used or self._roomy()):
                block = self._free.pop()
                self._used = max(self._used, block + 1)
            else:
                block, _nothing = self._kept.popitem(last=False)
                self._forget(block)
            self._owners[block] = 1
            blocks.append(block)
        return blocks

    def release(self, blocks: Iterable[int]) -> None:
        """Remove one owner of each block. Later blocks of a chain will be evicted before earlier ones."""
        for block in reversed(list(blocks)):
            self._owners[block] -= 1
            if self._owners[block] > 0:
                continue
            if block in self._hash_of:
                self._kept[block] = None
            else:
                self._free.append(block)

    def publish(self, block: int, key: BlockHash) -> None:
        """Add an owned, full block to the prefix cache. If two blocks have equal contents, the first stays there."""
        if key not in self._block_of and block not in self._hash_of:
            self._block_of[key] = block
            self._hash_of[block] = key

    def forget(self, blocks: Iterable[int]) -> tuple[list[int], list[int]]:
        """Remove these owned blocks from the prefix cache. Return those with one owner, and the others."""
        parts: tuple[list[int], list[int]] = ([], [])
        for block in blocks:
            if block in self._hash_of:
                self._forget(block)
            parts[int(self._owners[block] > 1)].append(block)
        return parts

    def grow(self, count: int) -> None:
        """Add `count` free blocks, with the ids after the last. They are taken last, so `contract` moves less."""
        if count < 0:
            raise ValueError(f"count: got {count}, allowed: 0 or more")
        self._free[:0] = range(self.total + count - 1, self.total - 1, -1)
        self._owners = np.concatenate([self._owners, np.zeros(count, np.int32)])
        self.total += count

    def contract(self, total: int) -> tuple[list[int], list[int]] | None:
        """Shrink the pool to `total` blocks, and return old ids and new ones. Each owned or kept block from `total` on
        gets the id of a free one below. Before any write, the caller must move its contents there and renumber every
        table. Kept blocks without room are forgotten, oldest first. If too many are owned, change nothing and return
        None."""
        if not 1 <= total <= self.total:
            raise ValueError(f"total: got {total}, allowed: 1 to {self.total}")
        if self.owned > total:
            return None
        while self.owned + self.kept > total:
            block, _nothing = self._kept.popitem(last=False)
            self._forget(block)
            self._free.append(block)
        used = set(range(total, self.total)).difference(self._free)
        free = sorted(block for block in self._free if block < total)
        moved = dict(zip(sorted(used), free))
        self._free = free[len(moved) :][::-1]
        for old, new in moved.items():
            self._owners[new] = self._owners[old]
        self._owners = self._owners[:total].copy()
        self._kept = OrderedDict((moved.get(block, block), None) for block in self._kept)
        self._hash_of = {moved.get(block, block): key for block, key in self._hash_of.items()}
        self._block_of = {key: block for block, key in self._hash_of.items()}
        self.total, self._used = total, min(self._used, total)
        return list(moved), list(moved.values())

    def check(self, owned: Iterable[Sequence[int]] | None = None) -> None:
        """Raise AssertionError unless every block is exactly one of free, kept or owned. With `owned`, the tables of
        all sequences, also check that the reference counts match them."""
        free, kept = set(self._free), set(self._kept)
        assert len(free) == len(self._free), "a block is on the free list twice"
        assert not free & kept, "a block is both free and kept"
        counted = set(np.flatnonzero(self._owners > 0).tolist())
        assert not counted & (free | kept), "an owned block is handed out"
        assert len(free) + len(kept) + len(counted) == self.total, "a block is lost"
        assert (self._owners >= 0).all(), "a block was released too often"
        assert kept <= self._hash_of.keys(), "a kept block has no hash"
        assert not free & self._hash_of.keys(), "a free block has a hash"
        assert {b: h for h, b in self._block_of.items()} == self._hash_of, "the hash index is not one to one"
        if owned is not None:
            expected = np.zeros(self.total, np.int32)
            for table in owned:
                np.add.at(expected, np.asarray(table, np.int64), 1)
            assert (expected == self._owners).all(), "reference counts differ from the tables"

    def _forget(self, block: int) -> None:
        key = self._hash_of.pop(block)
        del self._block_of[key]
