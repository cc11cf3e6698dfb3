"""The stepper for models that OpenVINO's runtime computes: each step is a pass over block tables, and little else.

A row's columns lie in its own blocks, where chains are drafted. In a tree the lanes of a row differ in their last
columns, which a table must have in one order: each lane has private copies of the blocks from the first proposal on.

    the row's table      | 7 | 2 | 9 |     3 pending tokens end in block 9, and nodes have slots behind them
    lane 0, lane 1       | 7 | 2 | a |     | 7 | 2 | b |     a and b begin as 9 does; each has its own path behind it

A node's key is copied from its lane to the node's own slot, and from there to the lanes that go on from it.
"""

from __future__ import annotations

import numpy as np

from covey.drafters.stepper import Call, Visible
from covey.models.openvino import BLOCK
from covey.models.openvino.model import OpenvinoModel
from covey.sampling.noise import Index
from covey.types import Floats, Ints


class OpenvinoStepper:
    """Not safe to call from two threads at once."""

    def __init__(self, model: OpenvinoModel) -> None:
        self._infer, self._pool = model.decoder.infer, model.pool
        self._private = np.asarray(model.pool.spare[1:], np.int32)  # two blocks for each token of a pass
        self.resident_bytes = 0

    def begin(self, call: Call, lanes: int) -> None:  # noqa: ARG002  # a pass needs no preparation
        self._call, self._done = call, 0

    def step(self, tokens: Index, rows: int, visible: Visible | None = None) -> Floats:
        return self._forward(tokens, rows) if visible is None else self._level(tokens, rows, visible)

    def catch_up(self, tokens: Index, rows: int) -> Floats:
        count = self._pending = len(tokens) // rows
        return self._forward(tokens, rows, np.arange(count - 1, len(tokens), count, dtype=np.int32))

    def finish(self) -> None:
        """Keys are where they belong."""

    def _forward(self, tokens: Index, rows: int, wanted: Ints | None = None) -> Floats:
        """The next columns of the rows, one behind the other."""
        call, start, count = self._call, self._done, len(tokens) // rows
        self._done = start + count
        tables = call.tables[:rows]
        past = call.context[:rows, None] + np.arange(start, self._done, dtype=np.int32)
        begins = np.repeat(np.arange(0, tables.size, tables.shape[1], dtype=np.int32), count)
        return self._pass(tokens, past, tables, begins, wanted)

    def _level(self, tokens: Index, rows: int, visible: Visible) -> Floats:
        """The next nodes of the rows' trees, one in each lane."""
        width, columns = visible.shape[1:]
        start, self._done = self._done, columns
        if start == self._pending:
            self._plant(rows, width)
        above = visible[:, :, self._pending : start].nonzero()[2].reshape(rows, width, -1) + self._pending
        level, slots, own = above.shape[2], self._slots[:rows], self._own[:rows]
        if level:
            ancestors = slots[np.arange(rows)[:, None, None], above]
            self._pool.copy_slots(ancestors.reshape(-1), own[:, :, :level].reshape(-1))
        tables = self._tables[:rows]
        past = np.repeat(self._call.context[:rows] + np.int32(self._pending + level), width)
        begins = np.arange(0, tables.size, tables.shape[2], dtype=np.int32)
        logits = self._pass(tokens, past, tables, begins)
        self._pool.copy_slots(own[:, :, level].reshape(-1), slots[:, start:columns].reshape(-1))
        return logits

    def _pass(self, tokens: Index, past: Ints, tables: Ints, begins: Ints, wanted: Ints | None = None) -> Floats:
        """Of the columns up to `_done`."""
        rows, count = len(tables), len(tokens) // len(tables)
        positions = self._call.positions[:rows, self._done - count : self._done].reshape(-1)
        flat = tokens.astype(np.int32), past.reshape(-1), tables.reshape(-1)
        return self._infer(*flat, begins, wanted, positions.astype(np.int32))

    def _plant(self, rows: int, width: int) -> None:
        """Give every lane a table of its own, and room for its path. Raises ValueError where that takes more private
        blocks than there are."""
        call, every = self._call, np.arange(rows)[:, None]
        levels = (call.slots.shape[1] - self._pending) // width
        first, inside = np.divmod(call.context[:rows] + np.int32(self._pending), BLOCK)  # where the first proposal goes
        each = -(-(BLOCK - 1 + levels) // BLOCK)
        private = self._private[: rows * width * each].reshape(rows, width, each)
        begun = np.flatnonzero(inside)
        shared = call.tables[begun, first[begun]]
        self._pool.copy_blocks(np.repeat(shared, width), private[begun, :, 0].reshape(-1))
        self._tables = np.zeros((rows, width, max(call.tables.shape[1], int(first.max()) + each)), np.int32)
        self._tables[:, :, : call.tables.shape[1]] = call.tables[:rows, None]
        self._tables[every, :, first[:, None] + np.arange(each)] = private.swapaxes(1, 2)
        place, offset = np.divmod(inside[:, None] + np.arange(levels), BLOCK)
        self._own = (private[every, :, place] * BLOCK + offset[:, :, None]).swapaxes(1, 2).astype(np.int32)
        self._slots = call.slots.astype(np.int32)
