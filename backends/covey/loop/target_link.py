"""The engine's link to its target: one message for each round."""

from __future__ import annotations

import numpy as np

from covey.contracts.ports import Target
from covey.contracts.types import Ints, TargetInfo, TargetReply, TargetWork, Trees
from covey.requests.scheduler import Batch


class TargetLink:
    """Owns the number of the last message, the target's epoch, and the size of its KV pool as it last reported it."""

    def __init__(self, target: Target, origin: int, info: TargetInfo) -> None:
        """`origin` is the engine's own number in its messages (`covey.wire.ledger`)."""
        self._target, self._origin = target, origin
        self._sequence, self._epoch = 0, info.epoch
        self.free_blocks = self.total_blocks = info.total_blocks

    def info(self) -> TargetInfo:
        return self._target.info()

    def step(
        self, batch: Batch, trees: Trees, *, divergence: bool, states_from: Ints
    ) -> tuple[TargetWork, TargetReply]:
        """Run the pass over a batch and its drafts. Return message and reply. Raises PortError if it failed."""
        self._sequence += 1
        rows = batch.rows
        work = TargetWork(
            tags=np.fromiter((active.key for active in rows), np.int32, len(rows)),
            base=np.fromiter((active.num_tokens for active in rows), np.int32, len(rows)),
            chunk=batch.chunk,
            trees=trees,
            opens=batch.opens,
            frees=batch.frees,
            sequence=self._sequence,
            epoch=self._epoch,
            room=np.fromiter((active.room for active in rows), np.int32, len(rows)),
            origin=self._origin,
            divergence=divergence,
            states_from=states_from,
        )
        reply = self._target.step(work)
        opened = {opening.tag for opening in batch.opens}
        for active in rows:
            active.opened |= active.key in opened
        self._epoch = reply.epoch
        self.free_blocks, self.total_blocks = reply.free_blocks, reply.total_blocks
        return work, reply

    def resized(self, total: int) -> None:
        """Note that the pool has `total` blocks now."""
        self.free_blocks += total - self.total_blocks
        self.total_blocks = total
