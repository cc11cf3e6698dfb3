"""The engine's link to its target: one message for each round, and what its reply gives to each request."""

from __future__ import annotations

import numpy as np

from covey.contracts.ports import Target
from covey.contracts.types import NO_INTS, NO_TOP, Ints, Progress, TargetInfo, TargetReply, TargetWork, Trees
from covey.requests.active import ActiveRequest, crop
from covey.requests.rounds import Plan
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
        self, batch: Batch, trees: Trees, *, divergence: bool, states_from: Ints, next_depth: Ints = NO_INTS
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
            next_depth=next_depth,
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


class PassOutcome:
    """Reads a reply row by row, from lists, which takes less time than from arrays."""

    def __init__(self, plan: Plan, trees: Trees, reply: TargetReply) -> None:
        """`trees` are the drafts that were verified."""
        self.status: list[int] = reply.status.tolist()
        self._reply = reply
        self._drafters, self._drafted = plan.drafter, trees.sizes.tolist()
        self._accepted, self._offsets, self._tokens = (
            array.tolist() for array in (reply.accepted, reply.offsets, reply.tokens)
        )
        self._cached, self._reused, self._scored = (
            array.tolist() for array in (reply.num_cached_tokens, reply.reused, reply.scored)
        )

    def give(self, row: int, active: ActiveRequest, now: float) -> Progress | None:
        """Give a request its KV, prompt scores and tokens. Return its progress; None without a token. Tokens after its
        end are dropped."""
        reply, scored = self._reply, self._scored
        active.num_cached_tokens = self._cached[row]
        active.reused += self._reused[row]
        if scored and scored[row] < scored[row + 1]:
            active.score(reply.scores.at(slice(scored[row], scored[row + 1])))
        start, end = self._offsets[row], self._offsets[row + 1]
        if start == end:
            return None
        kept, finish = crop(active, self._tokens[start:end])
        part = slice(start, start + len(kept))
        active.emit(kept, now)
        if self._drafted[row]:
            accepted = min(self._accepted[row], len(kept))
            active.count_draft(self._drafters[row], self._drafted[row], accepted)
        wanted = active.request.sampling.top_logprobs
        top = reply.top.at(part, wanted) if wanted else NO_TOP
        return active.progress(reply.tokens[part], reply.logprobs[part], finish, top=top)
