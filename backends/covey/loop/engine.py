"""The round loop. READ THIS FIRST.

One call of `Engine.round` is one round over the running batch:

    admit    waiting requests join while blocks and token budget last            (scheduler)
    offer    texts that repeat themselves offer drafts                           (lookups)
    plan     how deep and wide to draft, and which drafter, for each row         (planner)
    draft    one call per drafter in use, in parallel                            (drafters)
    select   drop drafts that are not worth verifying                            (planner)
    verify   one pass over the target: prefill chunks, last tokens, all trees    (target); drafters may read meanwhile
    commit   keep what may be kept, finish what is done, hand progress to the sink
    learn    tell planner and observer what the round cost and brought; what can wait is learnt while drafters work
    breathe  drafters leave or come back, and the KV pool follows, where there is a reason to        (memory)

What only plans, learns or observes is called through a guard: it may fail, and the round goes on.

The engine imports neither torch nor Triton: everything outside is a port (`covey.contracts.ports`). It runs in one
thread; `submit` and `cancel` may be called from any other. A drafter that fails costs speed, never a request. A target
that fails is reloaded through `recover` and every request is replayed from its tokens: those that were in the fatal
pass each alone until their next token, so that one which kills the target is found and fails alone (`requests.trials`).
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

MEMORY = "memory"  # the part that has drafters leave and come back
LOOKUPS = "lookups"  # the part that drafts by what texts repeat
RECOVERIES = 3  # failures in a row that brought no token and found no culprit, before all fail that it failed over


class Engine:
    """Runs rounds over ports. Owns nothing of a request but the order of events."""

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
        self._suspected = False  # the target, of having ended
        self._pending: Counter[str] = Counter()  # submissions by tenant not yet seen by the scheduler

    # ---- any thread -------------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Take a request, or raise Overloaded at once."""
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

    def suspect(self) -> None:
        """Note that the target may have ended. It is brought back while nothing runs: no request waits for that."""
        with self._wake:
            self._suspected = True
            self._wake.notify()

    @property
    def total_blocks(self) -> int:
        """Return the size of the target's KV pool, as the target said last."""
        return self._total_blocks

    # ---- the engine's own thread ------------------------------------------------------------------------------------

    def run(self) -> None:
        """Make rounds for ever; sleep while there is nothing to do."""
        with about(lambda: [active.request.name for active in list(self.scheduler.running.values())]):
            while self._goes_on():
                self.round()
        self._drafting.close()

    def _goes_on(self) -> bool:
        """Wait for something to do; False once it has been stopped."""
        with self._wake:
            while not (self._stopped or self._suspected or self._inbox) and self.scheduler.idle:
                if not self._wake.wait(self._pause):
                    break  # time to look after memory
            return not self._stopped

    def round(self) -> bool:
        """Make one round; return False when there was nothing to do."""
        laps, scheduler = Laps(self._clock), self.scheduler
        self._intake(laps.started)
        batch = scheduler.plan(self._free_blocks, laps.started, self.planner.prefill_allowance)
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
                    problem = Overloaded(f"queue full, and others have less in it; {self.scheduler.retry_advice()}")
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
        """Make the pass over the target; return None when it failed and its requests were put back or failed."""
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
            problem = CoveyError(f"the KV pool of {room} blocks cannot hold this request's {tokens} tokens")
            progress.append(too_big.last_word(Finish.ERROR, problem))
        if progress:
            self._failures = 0  # a pass alone proves nothing: of a replay, the chunks before the fatal one succeed
        return progress

    def _target_failed(self, batch: Batch, error: PortError) -> None:
        """Fail the requests that the target has died over twice, bring the target back and replay what else runs. When
        that has not helped, fail what runs. Requests that wait may have nothing to do with it."""
        proven, given_up = self.scheduler.target_died(batch, self._clock.now())
        self._failures = 0 if proven or given_up else self._failures + 1  # fewer run from now on
        log.error("target failed (%d of %d): %s", self._failures, RECOVERIES, error)
        twice = f"the target failed {DEATHS} times over this request, which is not tried again: {error}"
        self._fail(proven, CoveyError(twice))
        beside = f" and {len(batch.rows) - 1} others" if len(batch.rows) > 1 else ""
        among = f"the target failed over this request{beside}, and some request ends it; try again: {error}"
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
                self.scheduler.drop(batch.frees)  # nobody waits for them, and asking for ever would be all that is done

    def _recovered(self, error: PortError) -> bool:
        """Bring the target back; return whether that succeeded."""
        if self._recover is None:
            return False
        try:
            self._recover(error)
        except Exception as problem:  # whatever it is, the requests that wait are not to hang for it
            log.error("the target could not be recovered: %s: %s", type(problem).__name__, problem)
            return False
        return True

    def _fail(self, lost: list[ActiveRequest], error: CoveyError) -> None:
        """End these running requests with the error."""
        for active in lost:
            self._close(active)
        if lost:
            self._sink.publish([active.last_word(Finish.ERROR, error) for active in lost])

    def _check_suspected(self) -> None:
        """Bring the target back if somebody suspects that it has ended, and it has."""
        with self._wake:
            suspected, self._suspected = self._suspected, False
        if not suspected or self._recover is None:
            return
        try:
            self._target.info()
        except PortError as error:
            self._recovered(error)  # else the next request tries again

    def _learn(self, done: Round) -> None:
        """Tell everybody who learns from rounds."""
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
        """Return how many seconds memory may be left alone while nothing runs; None where nobody looks after it."""
        return None if self.memory is None or MEMORY in self._guard.aside else self.memory.pause

    def _drop(self, name: str) -> None:
        self._drafting.drop(name, (*self.scheduler.running.values(), *self.scheduler.waiting))

    def _close(self, active: ActiveRequest) -> None:
        self.scheduler.finish(active)
        self._drafting.forget(active)
        if self._lookups is not None:
            self._guard(LOOKUPS, self._lookups.forget, active)


def _no_token(request: Request) -> CoveyError:
    """Return why nothing can be drawn. A grammar is compiled when its request comes, but may grow too large later."""
    if request.sampling.grammar:
        left = "one that allows a token here: this one has none left, or too many places at once; make it simpler"
        return BadField("grammar", request.sampling.grammar, left)
    return CoveyError("the model's logits allow no token: not finite, or every token is masked")
