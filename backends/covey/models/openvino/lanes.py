"""The lanes of a pass as calls of a decoder: each of their tokens with the keys before it and where its table begins.

A chain's tokens read and write through its row's table. A tree's siblings share positions, which a table has one block
for: so each of its lanes, a path from the root to a leaf, has private blocks from the one on that the first node goes
to. They begin as a copy of that block; what the pass itself writes there is computed in them again, the path included,
and the nodes' keys are copied from there to their own slots after the pass.

    blocks of 4, 6 known tokens, the last of which is computed, then 21, or 22 and 23      table 2 9, private 30, 31

    token    root  21 22 23    root 21     root 22 23     a token has the result of where it is computed first
    past     5                 5    6      5    6  7
    table    2 9               2 30        2 31           9 is copied to 30 and 31 before the pass
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from covey.models.lanes import Lanes, Pass
from covey.models.openvino import BLOCK
from covey.types import NO_INTS, Ints


@dataclass(frozen=True, slots=True)
class Call:
    """What a decoder computes for a pass, the blocks that are copied before it and the slots that are after it."""

    tokens: Ints
    past: Ints
    tables: Ints
    begins: Ints
    wanted: Ints
    blocks: tuple[Ints, Ints] = (NO_INTS, NO_INTS)
    slots: tuple[Ints, Ints] = (NO_INTS, NO_INTS)


def call_of(work: Pass, spare: Sequence[int]) -> Call:
    """The call; `spare` are blocks that nobody's table names. Raises ValueError where a lane has more keys than its
    table or more lanes need private blocks than there are: the kernel looks at neither."""
    lanes = work.lanes
    assert isinstance(lanes, Lanes), "windows are for GPUs"
    rows, width = lanes.tables.shape
    if lanes.lengths.max(initial=0) > width * BLOCK:
        raise ValueError(f"{lanes.lengths.max()} keys in {width} blocks of {BLOCK}")
    if lanes.tail_offsets is None:
        begins = np.repeat(np.arange(rows, dtype=np.int32) * np.int32(width), lanes.counts)
        ends: Ints = np.repeat(lanes.lengths - lanes.offsets[1:], lanes.counts)
        past: Ints = ends + np.arange(work.size, dtype=np.int32)
        return Call(work.tokens, past, lanes.tables.reshape(-1), begins, work.out)
    return _Trees(work, lanes, spare).call()


class _Trees:
    def __init__(self, work: Pass, lanes: Lanes, spare: Sequence[int]) -> None:
        self._work, self._lanes, self._spare = work, lanes, iter(spare)
        self._token_of = dict(zip(work.slots.tolist(), range(work.size)))
        self._first = np.full(work.size, -1, np.int32)  # where each token is computed first
        self._computed: list[int] = []
        self._begins: list[int] = []
        self._tables: list[Ints] = []
        self._width = 0  # of the tables so far
        self._blocks: list[tuple[int, int]] = []
        self._slots: list[tuple[int, int]] = []

    def call(self) -> Call:
        lanes, work = self._lanes, self._work
        assert lanes.queries is not None
        assert lanes.tail_offsets is not None
        for row in range(lanes.rows):
            queries = lanes.queries[lanes.offsets[row] : lanes.offsets[row + 1]]
            tail = lanes.tails[lanes.tail_offsets[row] : lanes.tail_offsets[row + 1]]
            known = int(lanes.lengths[row]) - len(tail)
            self._add(queries[work.positions[queries] < known].tolist(), lanes.tables[row])
            if len(tail):
                self._path(lanes.tables[row], known, tail.tolist())
        at = np.asarray(self._computed, np.int32)
        begins, tables = np.asarray(self._begins, np.int32), np.concatenate(self._tables)
        wanted = self._first[work.out]
        return Call(
            work.tokens[at], work.positions[at], tables, begins, wanted, _pairs(self._blocks), _pairs(self._slots)
        )

    def _path(self, table: Ints, known: int, tail: list[int]) -> None:
        """A lane with private blocks, whose last slots are `tail`."""
        start = known // BLOCK  # the first private block's place
        private = [self._private() for _ in range(start, (known + len(tail) - 1) // BLOCK + 1)]
        slots = [int(table[start]) * BLOCK + place for place in range(known % BLOCK)] + tail
        if known % BLOCK:
            self._blocks.append((int(table[start]), private[0]))
        found = [(place, self._token_of.get(slot)) for place, slot in enumerate(slots)]
        written = [(place, token) for place, token in found if token is not None]
        for place, token in written:
            if place >= known % BLOCK and self._first[token] < 0:
                self._slots.append((private[place // BLOCK] * BLOCK + place % BLOCK, slots[place]))
        self._add([token for _, token in written], np.append(table[:start], np.asarray(private, np.int32)))

    def _private(self) -> int:
        block = next(self._spare, None)
        if block is None:
            raise ValueError("trees of more paths than there are private blocks for")
        return block

    def _add(self, tokens: list[int], table: Ints) -> None:
        for at, token in enumerate(tokens, start=len(self._computed)):
            if self._first[token] < 0:
                self._first[token] = at
        self._computed += tokens
        self._begins += [self._width] * len(tokens)
        self._tables.append(table)
        self._width += len(table)


def _pairs(pairs: list[tuple[int, int]]) -> tuple[Ints, Ints]:
    both = np.asarray(pairs, np.int32).reshape(-1, 2)
    return both[:, 0], both[:, 1]
