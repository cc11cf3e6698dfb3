"""The stepper for a model that is told nothing but passes: each step is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from covey.contracts.types import Floats, Ints
from covey.models.lanes import Lanes, Pass, Windows
from covey.models.stepper import Call, Passes, Race, Visible
from covey.noise.arrays import host, plain
from covey.noise.noise import Index

if TYPE_CHECKING:
    from covey.models.native.head import HeadModel
    from covey.models.native.model import NativeModel


class ReadsStates(Passes, Protocol):
    """A head, whatever computes it."""

    def outputs(self, tokens: Ints) -> Floats:
        """Return what the head made of these tokens of the last pass, which a later step reads in place of states."""
        ...


class PagedStepper:
    """Any model, on any device; logits come to the host."""

    def __init__(self, model: Passes) -> None:
        self._model = model
        self.draws = False

    def begin(self, call: Call) -> None:
        self._call = call
        self._done = 0

    def step(self, tokens: Index, rows: int, visible: Visible | None = None) -> Floats:
        return self._forward(tokens, rows, visible, np.arange(len(tokens), dtype=np.int32))

    def catch_up(self, tokens: Index, rows: int) -> Floats:
        count = len(tokens) // rows
        return self._forward(tokens, rows, None, np.arange(count - 1, len(tokens), count, dtype=np.int32))

    def chain(self, pending: Index, race: Race) -> tuple[Ints, Floats] | None:
        raise NotImplementedError("chains go step by step")

    def _pending(self, pending: Index) -> Pass:
        """Return the pass over the rows' pending tokens [rows, n], with the logits of each row's last one."""
        call, (rows, count) = self._call, pending.shape
        offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(count)
        return Pass(
            pending.reshape(-1).astype(np.int32),
            call.positions[:, :count].reshape(-1).astype(np.int32),
            call.slots[:, :count].reshape(-1).astype(np.int32),
            Lanes(offsets, call.context + np.int32(count), call.tables),
            offsets[1:] - 1,
            None if call.states is None else call.states.reshape(pending.size, -1),
        )

    def _forward(
        self, tokens: Index, rows: int, visible: Visible | None, out: Ints, states: Floats | None = None
    ) -> Floats:
        call, count = self._call, len(tokens) // rows
        now = slice(self._done, self._done + count)
        self._done += count
        slots = call.slots[:rows].astype(np.int32)
        seen: Lanes | Windows
        if visible is not None:
            seen = _windows(call, visible) if self._model.windows else _lanes(call, visible, slots)
        else:
            offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(count)
            seen = Lanes(offsets, call.context[:rows] + np.int32(self._done), call.tables[:rows])
        positions = call.positions[:rows, now].reshape(-1).astype(np.int32)
        work = Pass(tokens.astype(np.int32), positions, slots[:, now].reshape(-1), seen, out, states)
        return host(plain(self._model.forward(work)))


class NativeStepper(PagedStepper):
    """The native runtime's: compiled code draws chains, step after step."""

    def __init__(self, model: NativeModel) -> None:
        super().__init__(model)
        self._native = model
        self.draws = True
        model.prepare_chains()

    def chain(self, pending: Index, race: Race) -> tuple[Ints, Floats] | None:
        call, count = self._call, pending.shape[1]
        slots = call.slots[:, count:].astype(np.int32)
        return self._native.chain(self._pending(pending), slots, call.positions[:, count:], race)


class HeadStepper(PagedStepper):
    """A head's steps: the first reads the target's states, and each later one what the head made of the token before,
    in its place."""

    def __init__(self, model: ReadsStates) -> None:
        super().__init__(model)
        self._head = model
        self._outputs: Floats = np.zeros((0, 1, 0), np.float32)  # of the last step, [rows, lanes, width]

    def step(self, tokens: Index, rows: int, visible: Visible | None = None) -> Floats:
        lanes, above = len(tokens) // rows, self._outputs[:rows]
        parents = np.arange(rows)[:, None], np.zeros((rows, lanes), np.int64)
        if visible is not None and above.shape[1] > 1:  # the columns before a level's own are the level's above
            parents = parents[0], visible[:, :, -2 * lanes : -lanes].argmax(axis=2)
        every = np.arange(len(tokens), dtype=np.int32)
        logits = self._forward(tokens, rows, visible, every, above[parents].reshape(len(tokens), -1))
        self._outputs = self._head.outputs(every).reshape(rows, lanes, -1)
        return logits

    def catch_up(self, tokens: Index, rows: int) -> Floats:
        count, states = len(tokens) // rows, self._call.states
        assert states is not None, "a head's call has states"
        last = np.arange(count - 1, len(tokens), count, dtype=np.int32)
        logits = self._forward(tokens, rows, None, last, states.reshape(len(tokens), -1))
        self._outputs = self._head.outputs(last)[:, None]
        return logits


class NativeHeadStepper(HeadStepper, NativeStepper):
    """The native runtime's."""

    def __init__(self, model: HeadModel) -> None:
        super().__init__(model)


def _lanes(call: Call, visible: Visible, slots: Ints) -> Lanes:
    """Return one lane for each token, whose tail is what it sees of the call's columns."""
    rows, count, columns = visible.shape
    tails = [slots[row, :columns][visible[row, query]] for row in range(rows) for query in range(count)]
    sizes = np.asarray([len(tail) for tail in tails], np.int32)
    return Lanes(
        np.arange(rows * count + 1, dtype=np.int32),
        np.repeat(call.context[:rows], count) + sizes,
        np.repeat(call.tables[:rows], count, 0),
        np.arange(rows * count, dtype=np.int32),
        np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32),
        np.concatenate(tails),
    )


def _windows(call: Call, visible: Visible) -> Windows:
    """Return one window for each row, whose columns lie behind its context."""
    rows, count, columns = visible.shape
    context = call.context[:rows]
    padded = np.zeros((rows * count, -(-columns // 32) * 32), np.bool_)
    padded[:, :columns] = visible.reshape(rows * count, columns)
    return Windows(
        np.arange(rows + 1, dtype=np.int32) * np.int32(count),
        context + np.int32(columns),
        call.tables[:rows],
        context,
        np.repeat(context, count),
        np.packbits(padded, axis=1, bitorder="little").view(np.int32),
    )
