"""The stepper for models on a GPU: it draws chains there, step after step, without the host."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from covey.contracts.types import Floats, Ints
from covey.gpu.chains import Chains
from covey.gpu.head import DeviceHead
from covey.gpu.model import DeviceModel
from covey.models.paged_stepper import HeadStepper, PagedStepper
from covey.models.stepper import Call, Race
from covey.noise.noise import Index

ROWS, DEPTH = 256, 32  # larger chains go step by step
RECORDED_ROWS = (1, 2, 4, 8, 16, 32, 64)
RECORDED_ROWS_OF_HEAD = (1, 2, 4, 8)  # with more counts of pending tokens


class DeviceStepper(PagedStepper):
    """Drafts chains in one recorded graph. Trees, and rows that need distributions, take one pass per step."""

    def __init__(self, model: DeviceModel) -> None:
        super().__init__(model)
        self.draws = True
        self._padding_slot = model.padding_slot
        self._chains = Chains(model, ROWS, DEPTH)

    def record(self, depth: int) -> None:
        """Record chains of up to `depth` now, because a recording takes as long as dozens of chains."""
        self._record(depth, RECORDED_ROWS, 2)

    def _record(self, depth: int, most: Sequence[int], pending: int) -> None:
        """Record chains for so many rows, with up to so many pending tokens."""
        for rows in most:
            for count in range(1, pending + 1):
                at = np.broadcast_to(np.arange(count + depth), (rows, count + depth))
                unkept = np.full((rows, count + depth), self._padding_slot, np.int64)
                zeros = np.zeros(rows, np.int32)
                for each in range(1, depth + 1):
                    columns = slice(count + each - 1)
                    self.begin(Call(zeros[:, None], zeros, at[:, columns], unkept[:, columns]))
                    words = np.ones((each, 3, rows), np.int32)
                    for _ in range(2):
                        self.chain(np.zeros((rows, count), np.int64), Race(np.zeros(rows), words))

    def chain(self, pending: Index, race: Race) -> tuple[Ints, Floats] | None:
        call, (rows, count) = self._call, pending.shape
        if rows > self._chains.rows or len(race.words) > self._chains.depth:
            return None
        slots = call.slots[:, count:].astype(np.int32)
        return self._chains.propose(self._pending(pending), slots, call.positions[:, count:], race)


class DeviceHeadStepper(HeadStepper, DeviceStepper):
    """A head's."""

    def __init__(self, model: DeviceHead) -> None:
        super().__init__(model)

    def record(self, depth: int) -> None:
        """Record chains for rows that accepted any number of drafts: a head reads those again, with the target's
        states."""
        self._record(depth, RECORDED_ROWS_OF_HEAD, depth + 1)
