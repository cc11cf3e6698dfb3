"""The round loop. READ THIS FIRST.

One call of `Engine.round` is one round over the running batch:

    admit    waiting requests join while blocks and token budget last            (scheduler)
    plan     how deep and wide to draft, and which drafter, for each row         (planner)
    draft    one call per drafter in use, in parallel                            (drafters)
    select   drop drafts that are not worth verifying                            (planner)
    verify   one pass over the target: prefill chunks, last tokens, all trees    (target)
    commit   keep what may be kept, finish what is done, hand progress to the sink
    observe  tell planner and observer what the round cost and brought; what can wait is learnt while drafters work

The engine imports neither torch nor Triton: everything outside is a port (`covey.ports`). It runs in one thread;
`submit` and `cancel` may be called from any other. A drafter that fails costs speed, never a request. A target that
fails is reloaded through `recover` and every request is replayed from its tokens.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from covey.drafting import Drafting
from covey.errors import CoveyError, Overloaded, PortError
from covey.planner.choice import Choice, Planner
from covey.ports import Clock, Drafter, Sink, Target
from covey.scheduler import Batch, Live, Scheduler, crop
from covey.types import (
    NO_FLOATS,
    NO_INTS,
    Finish,
    Floats,
    Ints,
    Progress,
    Request,
    RowStatus,
    TargetReply,
    TargetWork,
    Trees,
)

log = logging.getLogger("covey.engine")

RECOVERIES = 3  # failures of the target, no token in between, before the requests that run fail
ORIGIN_BITS = 63  # of what tells this engine from the one before it, on whose tags target and drafters may still sit


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """What one round cost and brought; seconds by phase. `pass_seconds` is inside the target, the rest of
    `verify_seconds` is transport."""

    rows: int
    decoding: int
    prefill_tokens: int
    trees: int
    drafted: int
    accepted: int
    emitted: int
    plan_seconds: float
    draft_seconds: float
    verify_seconds: float
    pass_seconds: float
    commit_seconds: float
    waiting: int
    running: int
    free_blocks: int
    total_blocks: int
    reused: int
    preempted: int
    choice: Choice
    sizes: Ints  # by row: tokens drafted, and how many of them were accepted
    accepts: Ints
    catch_up_seconds: float = 0.0  # of draft_seconds, the longest that a drafter took to see tokens it had missed


class Engine:
    """Runs rounds over ports. Owns nothing of a request but the order of events."""

    def __init__(
        self,
        target: Target,
        scheduler: Scheduler,
        planner: Planner,
        sink: Sink,
        clock: Clock,
        *,
        drafters: Mapping[str, Drafter] | None = None,
        draft_deadline: float = 0.5,
        drafter_failed: Callable[[str, CoveyError], None] | None = None,
        recover: Callable[[PortError], None] | None = None,
        observe: Callable[[RoundRecord], None] | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.planner = planner
        self._target = target
        self._sink = sink
        self._clock = clock
        self._origin = secrets.randbits(ORIGIN_BITS)
        self._drafting = Drafting(drafters or {}, clock, draft_deadline, drafter_failed, origin=self._origin)
        self._recover = recover
        self._observe = observe
        info = target.info()
        self._free_blocks = info.total_blocks
        self._total_blocks = info.total_blocks
        self._epoch = info.epoch
        self._sequence = 0
        self._failures = 0
        self._inbox: deque[Request | tuple[int, Finish]] = deque()
        self._wake = threading.Condition()
        self._draining = False
        self._stopped = False
        self._pending = 0  # submissions not yet seen by the scheduler

    # ---- any thread -------------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Take a request, or raise Overloaded at once."""
        with self._wake:
            if self._draining:
                raise Overloaded("the server is draining; no new requests")
            if len(self.scheduler.waiting) + self._pending >= self.scheduler.max_waiting:
                raise Overloaded(f"queue full: {self.scheduler.max_waiting} requests are waiting; try again later")
            self._pending += 1
            self._inbox.append(request)
            self._wake.notify()

    def cancel(self, key: int, finish: Finish = Finish.CANCELLED) -> None:
        """End a request before the next round; its blocks are free after that round. Unknown keys are ignored."""
        with self._wake:
            self._inbox.append((key, finish))
            self._wake.notify()

    def drain(self) -> None:
        """Refuse new requests; those taken go on."""
        with self._wake:
            self._draining = True

    def stop(self) -> None:
        """Let `run` return after the round in flight."""
        with self._wake:
            self._stopped = True
            self._wake.notify()

    # ---- the engine's own thread ------------------------------------------------------------------------------------

    def run(self) -> None:
        """Rounds for ever; sleeps while there is nothing to do."""
        while True:
            with self._wake:
                while not self._stopped and not self._inbox and self.scheduler.idle:
                    self._wake.wait()
                if self._stopped:
                    break
            self.round()
        self._drafting.close()

    def round(self) -> bool:
        """One round; False when there was nothing to do."""
        started = self._clock.now()
        self._intake()
        batch = self.scheduler.plan(self._free_blocks)
        if not batch.rows and not batch.frees:
            return False
        choice = self.planner.plan(batch, self.scheduler.token_budget)
        planned = self._clock.now()
        trees = self.planner.select(batch, self._drafting.draft(batch, choice, self.planner.meanwhile))
        drafted = self._clock.now()
        reply = self._verify(batch, trees)
        if reply is None:
            return True
        verified = self._clock.now()
        progress = self._commit(batch, trees, reply)
        if progress:
            self._sink.publish(progress)
        record = RoundRecord(
            rows=len(batch.rows),
            decoding=batch.decoding,
            prefill_tokens=int(batch.chunk[batch.decoding :].sum()),
            trees=int(np.count_nonzero(trees.sizes)),
            drafted=len(trees.tokens),
            accepted=int(reply.accepted.sum()),
            emitted=sum(len(item.tokens) for item in progress),
            plan_seconds=planned - started,
            draft_seconds=drafted - planned,
            verify_seconds=verified - drafted,
            pass_seconds=reply.seconds,
            commit_seconds=self._clock.now() - verified,
            waiting=len(self.scheduler.waiting),
            running=len(self.scheduler.running),
            free_blocks=reply.free_blocks,
            total_blocks=reply.total_blocks,
            reused=int(reply.reused.sum()),
            preempted=self.scheduler.preemptions,
            choice=choice,
            sizes=trees.sizes,
            accepts=reply.accepted.copy(),  # a view would keep the whole message
            catch_up_seconds=self._drafting.catch_up_seconds,
        )
        self.planner.observe(batch, trees, reply, record)
        if self._observe is not None:
            self._observe(record)
        return True

    def _intake(self) -> None:
        with self._wake:
            items, self._inbox = self._inbox, deque()
            self._pending = 0
        ended = []
        for item in items:
            if isinstance(item, Request):
                try:
                    self.scheduler.submit(item)
                except Overloaded as error:
                    ended.append(_ending(item.key, Finish.ERROR, error))
                continue
            key, finish = item
            live = self.scheduler.find(key)
            if live is not None:
                if key in self.scheduler.running:
                    self._failures = 0  # it may have been what the target fails of
                self._close(live)
                ended.append(_last_word(live, finish))
        if ended:
            self._sink.publish(ended)

    def _verify(self, batch: Batch, trees: Trees) -> TargetReply | None:
        """The pass over the target; None when it failed and its requests were put back or failed."""
        rows = batch.rows
        self._sequence += 1
        work = TargetWork(
            tags=np.fromiter((live.key for live in rows), np.int32, len(rows)),
            base=np.fromiter((live.known for live in rows), np.int32, len(rows)),
            chunk=batch.chunk,
            trees=trees,
            opens=batch.opens,
            frees=batch.frees,
            sequence=self._sequence,
            epoch=self._epoch,
            room=np.fromiter((live.room for live in rows), np.int32, len(rows)),
            origin=self._origin,
        )
        try:
            reply = self._target.step(work)
        except PortError as error:
            self.scheduler.unsent(batch)
            self._target_failed(batch, error)
            return None
        opened = {opening.tag for opening in batch.opens}
        for live in rows:
            if live.key in opened:
                live.opened = True
        self._epoch = reply.epoch
        self._free_blocks = reply.free_blocks
        self._total_blocks = reply.total_blocks
        return reply

    def _commit(self, batch: Batch, trees: Trees, reply: TargetReply) -> list[Progress]:
        progress = []
        sizes = trees.sizes.tolist()
        status, cached, accepted, reused = (
            array.tolist() for array in (reply.status, reply.cached, reply.accepted, reply.reused)
        )
        offsets, tokens = reply.offsets.tolist(), reply.tokens.tolist()
        starved = False
        for row, live in enumerate(batch.rows):
            if status[row] == RowStatus.STALE:
                self.scheduler.reopen(live)
                continue
            if status[row] == RowStatus.NO_BLOCKS:
                starved = True
                continue
            if status[row] == RowStatus.FAULT:
                self._close(live)
                problem = CoveyError("the model's logits allow no token: not finite, or every token is masked")
                progress.append(_last_word(live, Finish.ERROR, problem))
                continue
            live.cached = cached[row]
            live.reused += reused[row]
            start, end = offsets[row], offsets[row + 1]
            if start == end:
                continue
            kept, finish = crop(live, tokens[start:end])
            end = start + len(kept)
            live.output += kept
            live.rounds += 1
            if sizes[row]:
                live.judged(sizes[row], min(accepted[row], len(kept)))
            if finish is not None:
                self._close(live)
            progress.append(_progress(live, reply.tokens[start:end], reply.logprobs[start:end], finish))
        if starved:
            progress.extend(self._make_room())
        if progress:
            self._failures = 0  # a pass alone proves nothing: of a replay, the chunks before the fatal one succeed
        return progress

    def _make_room(self) -> list[Progress]:
        """The pool is exhausted: put the least urgent request back, or fail it when it is alone and still too big. Not
        while blocks come free anyway, with the next pass."""
        if self.scheduler.freeing:
            return []
        live = self.scheduler.least_urgent()
        if len(self.scheduler.running) > 1:
            self.scheduler.preempt(live)
            return []
        self._close(live)
        problem = CoveyError(
            f"the KV pool of {self._total_blocks} blocks cannot hold this request's {live.known} tokens"
        )
        return [_last_word(live, Finish.ERROR, problem)]

    def _target_failed(self, batch: Batch, error: PortError) -> None:
        """Bring the target back and replay what runs; when that has not helped, fail what runs. Requests that wait
        may have nothing to do with it."""
        self._failures += 1
        log.error("target failed (%d of %d): %s", self._failures, RECOVERIES, error)
        for live in self.scheduler.running.values():
            self.scheduler.reopen(live)
        if self._failures < RECOVERIES and self._recover is not None:
            try:
                self._recover(error)
                return
            except Exception as problem:  # whatever it is, the requests that wait are not to hang for it
                log.error("the target could not be recovered: %s: %s", type(problem).__name__, problem)
        self._failures = 0
        if not batch.rows:
            self.scheduler.drop(batch.frees)  # nobody waits for them, and asking for ever would be all that is done
        lost = list(self.scheduler.running.values())
        for live in lost:
            self._close(live)
        self._sink.publish([_last_word(live, Finish.ERROR, error) for live in lost])

    def _close(self, live: Live) -> None:
        self.scheduler.finish(live)
        self._drafting.forget(live)


def _progress(
    live: Live, tokens: Ints, logprobs: Floats, finish: Finish | None, error: Exception | None = None
) -> Progress:
    return Progress(
        live.key,
        tokens,
        logprobs,
        finish,
        error,
        drafted=live.drafted,
        accepted=live.accepted,
        reused=live.reused,
        rounds=live.rounds,
        acceptance=tuple(live.acceptance),
    )


def _last_word(live: Live, finish: Finish, error: Exception | None = None) -> Progress:
    return _progress(live, NO_INTS, NO_FLOATS, finish, error)


def _ending(key: int, finish: Finish, error: Exception) -> Progress:
    return Progress(key, NO_INTS, NO_FLOATS, finish, error)
