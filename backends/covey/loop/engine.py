"""The round loop. READ THIS FIRST.

One call of `Engine.round` is one round over the running batch:

    admit    waiting requests join while blocks and token budget last            (scheduler)
    offer    lookups in the requests' own texts offer drafts                      (lookups)
    plan     how deep and wide to draft, and which drafter, for each row         (planner)
    draft    one call per drafter in use, in parallel                            (drafters)
    select   drop drafts that are not worth verifying                            (planner)
    verify   one pass over the target: prefill chunks, last tokens, all trees    (target); drafters may read meanwhile
    commit   keep what may be kept, finish what is done, send progress to the sink
    learn    give planner and observer the round's times and tokens; the rest is learnt during the next drafts
    breathe  unload or reload drafters if it pays, and resize the KV pool to match            (memory)

Planning, learning and observing are called through a guard: if they fail, the round continues.

The engine imports neither torch nor Triton: it reaches both through ports (`covey.contracts.ports`). It runs in one
thread; `submit` and `cancel` may be called from any other. A drafter that fails costs speed, never a request. The
engine reloads a failed target through `recover` and replays every request from its tokens. Requests of the fatal pass
each run alone until their next token, so that a request that kills the target is found and fails alone
(`requests.trials`).
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from functools import partial
from itertools import count

from covey.contracts.errors import BadField, CoveyError, Overloaded, PortError
from covey.contracts.ports import Clock, Sink, Target
from covey.contracts.types import NO_TOP, Finish, Progress, Request, RowStatus, TargetReply, Trees
from covey.kv.elastic import Pressure
from covey.loop.channel import Channel
from covey.loop.configuration import EngineConfig, EngineHooks
from covey.loop.drafting import Drafting
from covey.loop.lookups import Lookups
from covey.planner.guarded import Guarded
from covey.planner.planner import Planner
from covey.process.log_about import about
from covey.requests.active import ActiveRequest, crop
from covey.requests.roster import Roster
from covey.requests.rounds import Laps, Plan, Round, keep_pace, pressure_of, record_of
from covey.requests.scheduler import Batch, Scheduler
from covey.requests.trials import DEATHS
from covey.wire.ledger import new_origin

log = logging.getLogger("covey.engine")

MEMORY = "memory"  # name of the part that unloads and reloads drafters
LOOKUPS = "lookups"  # name of the part that drafts from repeated text
RECOVERIES = 3  # failures in a row, without a token or a culprit, before the requests of fatal passes fail


class Engine:
    """Runs rounds over ports. Decides the order of events; other parts own the requests' state."""

    def __init__(
        self,
        target: Target,
        scheduler: Scheduler,
        planner: Planner,
        sink: Sink,
        clock: Clock,
        config: EngineConfig | None = None,
        hooks: EngineHooks | None = None,
    ) -> None:
        config, hooks = config or EngineConfig(), hooks or EngineHooks()
        self.scheduler = scheduler
        self._guard = guard = hooks.guard
        self.planner: Planner = Guarded(planner, guard)
        self._target = target
        self._sink = sink
        self._clock = clock
        self._origin = new_origin(config.caller)
        self.roster = Roster(config.drafters, clock)
        sequence = count(1)
        failed = None if hooks.drafter_failed is None else guard.around("drafter failures", hooks.drafter_failed)
        channels = {
            name: Channel(name, drafter, self.roster, clock, failed, self._origin, sequence, hooks.worker)
            for name, drafter in config.drafters.items()
        }
        self._lookups = None
        if config.companion is not None:
            self._lookups = Lookups(config.companion, hooks.worker("lookup"), config.max_depth)
        self._drafting = Drafting(channels, self.roster, clock, config.draft_deadline, self._lookups)
        self.memory = hooks.memory(self.roster, self._drop) if hooks.memory is not None else None
        self._recover = hooks.recover
        self._observe = hooks.observe
        info = config.info or target.info()
        self._free_blocks = info.total_blocks
        self._total_blocks = info.total_blocks
        self._epoch = info.epoch
        self._sequence = 0
        self._failures = 0
        self._inbox: deque[Request | tuple[int, Finish]] = deque()
        self._wake = threading.Condition()
        self._draining = False
        self._stopped = False
        self._suspected = False  # whether the target may have ended
        self._pending: Counter[str] = Counter()  # submissions by tenant that the scheduler has not seen yet

    # ---- any thread -------------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Queue a request; raises Overloaded if the server is draining or the queue is full."""
        with self._wake:
            if self._draining:
                raise Overloaded("the server is draining; no new requests")
            pending = self._pending
            problem = self.scheduler.full(request.tenant, pending.total(), pending[request.tenant])
            if problem:
                raise Overloaded(f"{problem}; {self.scheduler.retry_advice()}")
            pending[request.tenant] += 1
            self._inbox.append(request)
            self._wake.notify()

    def cancel(self, key: int, finish: Finish = Finish.CANCELLED) -> None:
        """End a request before the next round. Its blocks are free after that round. Ignores unknown keys."""
        with self._wake:
            self._inbox.append((key, finish))
            self._wake.notify()

    def drain(self) -> None:
        """Refuse new requests. Accepted ones continue."""
        with self._wake:
            self._draining = True

    def stop(self) -> None:
        """Make `run` return after the current round."""
        with self._wake:
            self._stopped = True
            self._wake.notify()

    def suspect(self) -> None:
        """Note that the target may have ended. The engine checks while it is idle, so no request waits for the
        reload."""
        with self._wake:
            self._suspected = True
            self._wake.notify()

    @property
    def total_blocks(self) -> int:
        """Return the size of the target's KV pool as the target last reported it."""
        return self._total_blocks

    # ---- the engine's own thread ------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run rounds until `stop`; sleep while there is nothing to do."""
        with about(lambda: [active.request.name for active in list(self.scheduler.running.values())]):
            while self._goes_on():
                self.round()
        self._drafting.close()

    def _goes_on(self) -> bool:
        """Wait for work. Return False after `stop`."""
        with self._wake:
            while not (self._stopped or self._suspected or self._inbox) and self.scheduler.idle:
                if not self._wake.wait(self._pause):
                    break  # memory is due
            return not self._stopped

    def round(self) -> bool:
        """Run one round. Return False if there was nothing to do."""
        laps, scheduler = Laps(self._clock), self.scheduler
        self._intake(laps.started)
        batch = scheduler.admit(self._free_blocks, laps.started, self.planner.prefill_allowance)
        if not batch.rows and not batch.frees:
            self._check_suspected()
            self._breathe(Pressure(self._free_blocks, self._total_blocks))
            return False
        self._drafting.settle()
        if self._lookups is not None:
            self._guard(LOOKUPS, self._lookups.offer, batch)
        plan = self.planner.plan(batch, self.roster, scheduler.token_budget)
        laps.end()
        drafted = self._drafting.draft(batch, plan, partial(self.planner.meanwhile, batch, plan, self.roster))
        kept = self.planner.select(batch, drafted, scheduler.token_budget)
        laps.end()
        self._guard("reading", self._drafting.read, batch, plan.judges)
        reply = self._verify(batch, plan, kept)
        if reply is None:
            self._drafting.put_back(drafted)
            return True
        progress = self._commit(batch, plan, kept, reply, laps.end())
        if progress:
            self._sink.publish(progress)
        laps.end()
        emitted = sum(len(item.tokens) for item in progress)
        queued = len(scheduler.waiting), len(scheduler.running), scheduler.preemptions
        self._learn(Round(batch, plan, drafted, kept, reply, emitted, laps.times, *queued))
        return True

    def _intake(self, now: float) -> None:
        with self._wake:
            items, self._inbox = self._inbox, deque()
            self._pending.clear()
        ended = []
        for item in items:
            if isinstance(item, Request):
                try:
                    displaced = self.scheduler.submit(item, now)
                except Overloaded as error:
                    ended.append(ActiveRequest(item).last_word(Finish.ERROR, error))
                    continue
                if displaced is not None:
                    self._drafting.forget(displaced)
                    problem = Overloaded(f"queue full, and others have fewer in it; {self.scheduler.retry_advice()}")
                    ended.append(displaced.last_word(Finish.ERROR, problem))
                continue
            key, finish = item
            active = self.scheduler.find(key)
            if active is not None:
                self._close(active)
                ended.append(active.last_word(finish))
        if ended:
            self._sink.publish(ended)

    def _verify(self, batch: Batch, plan: Plan, trees: Trees) -> TargetReply | None:
        """Run the target's pass. Return None if it failed; its requests have then been put back or failed."""
        self._sequence += 1
        work = batch.work(
            trees,
            sequence=self._sequence,
            epoch=self._epoch,
            origin=self._origin,
            divergence=plan.divergence,
            states_from=self._drafting.states_from(batch, plan),
        )
        try:
            reply = self._target.step(work)
        except PortError as error:
            self.scheduler.unsent(batch)
            self._target_failed(batch, error)
            return None
        opened = {opening.tag for opening in batch.opens}
        for active in batch.rows:
            if active.key in opened:
                active.opened = True
        self._drafting.take_states(batch, work, reply)
        self._epoch = reply.epoch
        self._free_blocks = reply.free_blocks
        self._total_blocks = reply.total_blocks
        return reply

    def _commit(self, batch: Batch, plan: Plan, trees: Trees, reply: TargetReply, now: float) -> list[Progress]:
        progress = []
        sizes = trees.sizes.tolist()
        status, cached, accepted, reused = (
            array.tolist() for array in (reply.status, reply.num_cached_tokens, reply.accepted, reply.reused)
        )
        offsets, tokens, scored = reply.offsets.tolist(), reply.tokens.tolist(), reply.scored.tolist()
        starved = False
        for row, active in enumerate(batch.rows):
            if status[row] == RowStatus.STALE:
                self.scheduler.reopen(active)
                continue
            if status[row] == RowStatus.NO_BLOCKS:
                starved = True
                continue
            if status[row] == RowStatus.FAULT:
                self._close(active)
                progress.append(active.last_word(Finish.ERROR, _no_token(active.request)))
                continue
            active.num_cached_tokens = cached[row]
            active.reused += reused[row]
            if scored and scored[row] < scored[row + 1]:
                active.score(reply.scores.at(slice(scored[row], scored[row + 1])))
            start, end = offsets[row], offsets[row + 1]
            if start == end:
                continue
            kept, finish = crop(active, tokens[start:end])
            end = start + len(kept)
            active.emit(kept, now)
            if sizes[row]:
                active.count_draft(plan.drafter[row], sizes[row], min(accepted[row], len(kept)))
            if finish is not None:
                self._close(active)
            wanted = active.request.sampling.top_logprobs
            top = reply.top.at(slice(start, end), wanted) if wanted else NO_TOP
            progress.append(active.progress(reply.tokens[start:end], reply.logprobs[start:end], finish, top=top))
        too_big = self.scheduler.make_room(now) if starved else None
        if too_big is not None:
            self._close(too_big)
            room, tokens = self._total_blocks, too_big.num_tokens
            problem = CoveyError(f"the KV pool of {room} blocks cannot hold the {tokens} tokens of this request")
            progress.append(too_big.last_word(Finish.ERROR, problem))
        if progress:
            self._failures = 0  # only a token proves recovery: in a replay, the chunks before the fatal one succeed
        return progress

    def _target_failed(self, batch: Batch, error: PortError) -> None:
        """Fail the requests that killed the target twice, bring the target back and replay the others. After RECOVERIES
        failures, fail the requests of fatal passes; if the target stays away, all that run. Waiting requests may be
        innocent."""
        proven, given_up = self.scheduler.target_died(batch, self._clock.now())
        self._failures = 0 if proven or given_up else self._failures + 1  # fewer requests run from now on
        log.error("target failed (%d of %d): %s", self._failures, RECOVERIES, error)
        twice = f"the target failed {DEATHS} times over this request, which is not tried again: {error}"
        self._fail(proven, CoveyError(twice))
        others = f" and {len(batch.rows) - 1} others" if len(batch.rows) > 1 else ""
        among = f"the target failed over this request{others}; one of them may be the cause; try again: {error}"
        self._fail(given_up, Overloaded(among))
        running = self.scheduler.running
        if self._failures >= RECOVERIES:
            self._fail([active for active in running.values() if active.deaths], error)
        if not self._recovered(error):
            self._failures = RECOVERIES
            self._fail(list(running.values()), error)
        if self._failures >= RECOVERIES:
            self._failures = 0
            if not batch.rows:
                self.scheduler.drop(batch.frees)  # nothing waits for these frees; retrying them would go on for ever

    def _recovered(self, error: PortError) -> bool:
        """Bring the target back. Return whether that succeeded."""
        if self._recover is None:
            return False
        try:
            self._recover(error)
        except Exception as problem:  # any failure: waiting requests must not hang
            log.error("cannot recover the target: %s: %s", type(problem).__name__, problem)
            return False
        return True

    def _fail(self, lost: list[ActiveRequest], error: CoveyError) -> None:
        """End these running requests with the error."""
        for active in lost:
            self._close(active)
        if lost:
            self._sink.publish([active.last_word(Finish.ERROR, error) for active in lost])

    def _check_suspected(self) -> None:
        """Bring the target back if it was suspected and does not answer."""
        with self._wake:
            suspected, self._suspected = self._suspected, False
        if not suspected or self._recover is None:
            return
        try:
            self._target.info()
        except PortError as error:
            self._recovered(error)  # if this fails, the next request tries again

    def _learn(self, done: Round) -> None:
        """Give the finished round to everything that learns from rounds."""
        self._guard("pace", keep_pace, self.scheduler.pace, done)
        self.planner.learn(done)
        self._breathe(pressure_of(done, self.scheduler.max_running))
        observe = self._observe
        if observe is not None:
            self._guard("observer", lambda: observe(record_of(done)))

    def _breathe(self, pressure: Pressure) -> None:
        total = None if self.memory is None else self._guard(MEMORY, self.memory.tick, pressure)
        if total is not None:
            self._free_blocks += total - self._total_blocks
            self._total_blocks = total

    @property
    def _pause(self) -> float | None:
        """Return the seconds until memory is due while nothing runs; None without a memory part."""
        return None if self.memory is None or MEMORY in self._guard.aside else self.memory.pause

    def _drop(self, name: str) -> None:
        self._drafting.drop(name, (*self.scheduler.running.values(), *self.scheduler.waiting))

    def _close(self, active: ActiveRequest) -> None:
        self.scheduler.finish(active)
        self._drafting.forget(active)
        if self._lookups is not None:
            self._guard(LOOKUPS, self._lookups.forget, active)


def _no_token(request: Request) -> CoveyError:
    """Return why no token can be drawn. A grammar that compiled at submission may have grown too large since."""
    if request.sampling.grammar:
        left = "a simpler grammar: this one allows no token here, or follows too many alternatives at once"
        return BadField("grammar", request.sampling.grammar, left)
    return CoveyError("the model's logits allow no token: not finite, or every token is masked")
