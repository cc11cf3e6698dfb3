"""The same tokens over keys of all lengths, beside as many others as passes have: are their results the same bits?

Which way a product or an attention goes through the threads depends on the number of tokens, and for attention on the
numbers of their keys. Keys and values are random here: contexts as long as the pool are to be had at once.
"""

from __future__ import annotations

import time

import numpy as np

from covey.models.agreement import Room
from covey.models.openvino import BLOCK
from covey.models.openvino.decoder import Decoder, Floats2D
from covey.models.openvino.pool import KeyValuePool
from covey.types import Ints

_SECONDS = 3.0  # for counts beyond the first ones; those are tried however long they take
_FEW = 33  # tokens of a pass up to which numbers are tried with all probes
_LONGEST = 8192  # keys, as far as the pool has room
_PROBES = 12  # tokens that are compared at least
_RESULTS = 1 << 16  # of layers for all probes: one in thousands may differ
_MOST = 128  # probes, all the same


def counts_agree(decoder: Decoder, pool: KeyValuePool, room: Room, results: int) -> bool:
    """Whether tokens have the same logits alone and in passes of other numbers of tokens; each has so many `results` of
    layers. Writes over the pool."""
    rng = np.random.default_rng(7)
    blocks = min(room.blocks, -(-room.positions // BLOCK), _LONGEST // BLOCK)
    pool.fill(rng, blocks)
    table = rng.permutation(blocks).astype(np.int32)
    longest = min(room.positions, blocks * BLOCK)
    wanted = max(_PROBES, min(_RESULTS // results, _MOST))
    past = np.unique(np.geomspace(1, longest, min(wanted, longest // 2)).astype(np.int32) - 1)
    counts = _counts(room.limit)
    for _ in range(-(-wanted // len(past))):
        tokens = rng.integers(0, room.vocab, len(past)).astype(np.int32)
        if not _agree(decoder, tokens, past, table, counts):
            return False
        counts = [count for count in counts if count <= _FEW]
    return True


def _agree(decoder: Decoder, tokens: Ints, past: Ints, table: Ints, counts: list[int]) -> bool:
    def computed(at: Ints) -> Floats2D:
        return decoder.infer(tokens[at], past[at], table, np.zeros(len(at), np.int32)).copy()

    every = np.arange(len(past), dtype=np.int32)
    computed(every)  # each one's key is among those that later ones read
    alone = np.concatenate([computed(every[[probe]]) for probe in every])
    until = time.monotonic() + _SECONDS
    for count in counts:
        if count > _FEW and time.monotonic() > until:
            break
        for start in range(0, len(past), count):
            at = np.resize(every[start:], count)
            if not np.array_equal(computed(at), alone[at]):
                return False
    return True


def _counts(limit: int) -> list[int]:
    """How many tokens a pass may have: all that are few, a sample of the others, and the most."""
    some = (24, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128, 129, 192, 255, 256, 257, 384, 511, 512, 513, limit)
    return [count for count in sorted({*range(2, 18), *some}) if count <= limit]
