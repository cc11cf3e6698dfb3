"""The target's side of each request: its tokens, its blocks and how far its KV reaches.

    |<- num_cached_tokens -->|<- tokens still without KV --->|<- tree nodes of this pass ->|
    |<--------------------------- slots: room in owned blocks --------------------------->|

Knows no tensors. Position p of a request lives in pool slot `slots[p]`; node i of its tree in `slots[num_tokens + i]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from covey.contracts.types import NO_INTS, Ints, Open
from covey.kv.pool import BlockHash, BlockPool, chain_hashes


@dataclass(slots=True, eq=False)
class Sequence:
    """The tokens and blocks of one open request."""

    tag: int
    buffer: Ints  # tokens, with spare room
    num_tokens: int
    tenant: str
    settings: int  # its row of the settings table
    rounds: int
    num_cached_tokens: int = 0
    failed: int = 0  # its length when no token could be drawn last
    blocks: list[int] = field(default_factory=list)
    table: Ints = field(default_factory=lambda: NO_INTS)  # `blocks` as an array
    slots: Ints = field(default_factory=lambda: NO_INTS)
    hashes: list[BlockHash] = field(
        default_factory=list
    )  # one per full block; of several equal blocks one is published

    @property
    def tokens(self) -> Ints:
        """Return the tokens so far; a view."""
        return self.buffer[: self.num_tokens]

    def append(self, tokens: Ints) -> None:
        end = self.num_tokens + len(tokens)
        if end > len(self.buffer):
            grown = np.zeros(max(2 * len(self.buffer), end), np.int32)
            grown[: self.num_tokens] = self.buffer[: self.num_tokens]
            self.buffer = grown
        self.buffer[self.num_tokens : end] = tokens
        self.num_tokens = end


class Sequences:
    """Owns the open requests' tables and shares the pool's blocks among them."""

    def __init__(self, pool: BlockPool, block_size: int, *, reuse: bool) -> None:
        self.pool = pool
        self.block_size = block_size
        self._reuse = reuse
        self._open: set[Sequence] = set()
        self._in_block = np.arange(block_size, dtype=np.int32)

    def __len__(self) -> int:
        return len(self._open)

    def open(self, opening: Open, settings: int, *, anew: bool = False) -> Sequence:
        """Open a request, reusing the KV that earlier requests of its tenant left for its first blocks. Its last token
        is always computed again for its logits; with `anew` all tokens are."""
        tokens = opening.tokens
        buffer = np.zeros(len(tokens) + 64, np.int32)
        buffer[: len(tokens)] = tokens
        sequence = Sequence(opening.tag, buffer, len(tokens), opening.tenant, settings, opening.rounds)
        if self._reuse and not anew:
            hashes = chain_hashes(tokens[:-1], self.block_size, opening.tenant)
            sequence.blocks = self.pool.find(hashes)
            self.pool.share(sequence.blocks)
            sequence.hashes = hashes[: len(sequence.blocks)]
            sequence.num_cached_tokens = len(sequence.blocks) * self.block_size
            self._map(sequence)
        self._open.add(sequence)
        return sequence

    def close(self, sequence: Sequence) -> None:
        """Forget a request. Its blocks become free, or are kept for prompts with the same beginning."""
        self._open.remove(sequence)
        self.pool.release(sequence.blocks)

    def reserve(self, sequence: Sequence, length: int) -> bool:
        """Own slots for `length` positions. Return False, with nothing changed, if the pool is exhausted."""
        missing = -(-length // self.block_size) - len(sequence.blocks)
        if missing <= 0:
            return True
        taken = self.pool.take(missing)
        if taken is None:
            return False
        sequence.blocks += taken
        self._map(sequence)
        return True

    def settle(self, sequence: Sequence) -> None:
        """After a pass, give back blocks that only rejected drafts needed, and publish the blocks that filled up."""
        needed = -(-sequence.num_tokens // self.block_size)
        if len(sequence.blocks) > needed:
            self.pool.release(sequence.blocks[needed:])
            del sequence.blocks[needed:]
            self._map(sequence)
        full = sequence.num_cached_tokens // self.block_size
        if self._reuse and full > len(sequence.hashes):
            done = len(sequence.hashes)
            parent = sequence.hashes[-1] if done else b""
            tokens = sequence.buffer[: full * self.block_size]
            for block, key in enumerate(
                chain_hashes(tokens, self.block_size, sequence.tenant, parent, done), start=done
            ):
                self.pool.publish(sequence.blocks[block], key)
                sequence.hashes.append(key)

    def restart(self, sequence: Sequence) -> Ints:
        """Forget a request's KV so that no prefix search finds it. Return the slots that it keeps; shared blocks go
        back."""
        mine, shared = self.pool.forget(sequence.blocks)
        self.pool.release(shared)
        sequence.blocks, sequence.hashes, sequence.num_cached_tokens = mine, [], 0
        self._map(sequence)
        return sequence.slots

    def renumber(self, moved: Mapping[int, int]) -> None:
        """Replace the ids of blocks that the pool has moved (`BlockPool.contract`)."""
        for sequence in self._open:
            if not moved.keys().isdisjoint(sequence.blocks):
                sequence.blocks = [moved.get(block, block) for block in sequence.blocks]
                self._map(sequence)

    def check(self) -> None:
        """Raise AssertionError unless blocks and tables agree."""
        self.pool.check(sequence.blocks for sequence in self._open)
        for sequence in self._open:
            assert 0 <= sequence.num_cached_tokens <= sequence.num_tokens, "KV beyond the tokens"
            assert sequence.num_cached_tokens <= len(sequence.slots), "KV without blocks"

    def _map(self, sequence: Sequence) -> None:
        sequence.table = np.asarray(sequence.blocks, np.int32)
        sequence.slots = (sequence.table[:, None] * self.block_size + self._in_block).reshape(-1)
