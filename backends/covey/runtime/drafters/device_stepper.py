"""The stepper for models on a GPU: chains are drawn there, step after step, without the host."""

from __future__ import annotations

import numpy as np

from covey.runtime.device.chains import Chains, Steps
from covey.runtime.device.model import DeviceModel
from covey.runtime.drafters.paged_stepper import PagedStepper
from covey.runtime.drafters.stepper import Race
from covey.runtime.lanes import Lanes, Pass
from covey.runtime.noise import Index
from covey.types import Floats, Ints

ROWS, DEPTH = 256, 32  # beyond these a chain goes step by step


class DeviceStepper(PagedStepper):
    """Trees, and rows that need distributions, go step by step, each step a pass."""

    def __init__(self, model: DeviceModel) -> None:
        super().__init__(model)
        self._chains = Chains(model, ROWS, DEPTH)

    def chain(self, pending: Index, race: Race) -> tuple[Ints, Floats] | None:
        call = self._call
        rows, count = pending.shape
        depth = len(race.words)
        if rows > self._chains.rows or depth > self._chains.depth:
            return None
        slots, positions = call.slots.astype(np.int32), call.positions.astype(np.int32)
        offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(count)
        work = Pass(
            pending.reshape(-1).astype(np.int32),
            positions[:, :count].reshape(-1),
            slots[:, :count].reshape(-1),
            Lanes(offsets, call.context + np.int32(count), call.tables),
            offsets[1:] - 1,
        )
        steps = Steps(
            depth=depth,
            positions=positions[:, count:],
            slots=slots[:, count:],
            seen=call.context + np.int32(count),
            temperatures=race.temperatures,
            words=race.words,
        )
        return self._chains.propose(work, steps)
