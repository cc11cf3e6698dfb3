"""The round loop. READ THIS FIRST.

One call of `Engine.round` is one round over the running batch:

    admit    waiting requests join while blocks and token budget last            (scheduler)
    settle   take late replies; give up calls to drafters that have ended        (drafting)
    offer    lookups in the requests' own texts offer drafts                      (lookups)
    plan     how deep and wide to draft, and which drafter, for each row         (planner)
    draft    one call per drafter in use, in parallel                            (drafters)
             or the target drafts itself: the planned depth is then for the drafts of the next round
    select   drop drafts that are not worth verifying                            (planner)
    verify   one pass over the target: prefill chunks, last tokens, all trees    (target)
    commit   add accepted tokens, end finished requests, send progress to the sink
    learn    give planner and observer the round's times and tokens; slow learning waits for the next drafts
    breathe  unload or reload drafters if it pays, and resize the KV pool to match            (memory)

Planning, learning and observing are called through a guard: if they fail, the round continues.

The engine imports neither torch nor Triton: it reaches both through ports (`covey.contracts.ports`). It runs in one
thread; `submit`, `cancel`, `drain`, `stop` and `suspect` may be called from any other. A drafter that fails costs
speed, never a request. The engine reloads a failed target through `recover` and replays every request from its tokens.
Requests of the fatal pass each run alone until their next token, so that a request that kills the target is found and
fails alone (`requests.suspects`).
"""

from __future__ import annotations

from itertools import count

from covey.contracts.errors import BadField, CoveyError, Overloaded, PortError
from covey.contracts.ports import Clock, Sink, Target
from covey.contracts.types import Finish, Progress, Request, RowStatus, TargetReply, Trees
from covey.kv.elastic import Pressure
from covey.loop.channel import Channel
from covey.loop.configuration import EngineConfig, EngineHooks
from covey.loop.drafting import Drafting
from covey.loop.inbox import Inbox
from covey.loop.lookups import Lookups
from covey.loop.recovery import Recovery
from covey.loop.target_link import PassOutcome, TargetLink
from covey.planner.planner import Guarded, Planner
from covey.process.log_about import about
from covey.requests.active import ActiveRequest
from covey.requests.roster import Roster
from covey.requests.rounds import Laps, Plan, Round, keep_pace, pressure_of, record_of
from covey.requests.scheduler import Batch, Scheduler
from covey.wire.ledger import new_origin

MEMORY = "memory"  # name of the part that unloads and reloads drafters
LOOKUPS = "lookups"  # name of the part that drafts from repeated text


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
        self._sink = sink
        self._clock = clock
        self._inbox = inbox = Inbox(scheduler)
        self.submit, self.cancel, self.drain = inbox.submit, inbox.cancel, inbox.drain  # any thread may call these
        self.stop, self.suspect = inbox.stop, inbox.suspect
        origin = new_origin(config.caller)
        self._target = TargetLink(target, origin, config.info or target.info())
        self._recovery = Recovery(scheduler, hooks.recover, self._fail)
        self.roster = Roster(config.drafters, clock, config.own_head)
        sequence = count(1)
        failed = None if hooks.drafter_failed is None else guard.around("drafter failures", hooks.drafter_failed)
        channels = {
            name: Channel(name, drafter, self.roster, clock, failed, origin, sequence, hooks.worker)
            for name, drafter in config.drafters.items()
        }
        self._lookups = None
        if config.companion is not None:
            self._lookups = Lookups(config.companion, hooks.worker("lookup"), config.max_depth)
        self._drafting = Drafting(channels, self.roster, clock, config.draft_deadline, self._lookups)
        self.memory = hooks.memory(self.roster, self._drop) if hooks.memory is not None else None
        self._observe = hooks.observe

    @property
    def total_blocks(self) -> int:
        """Return the size of the target's KV pool as the target last reported it."""
        return self._target.total_blocks

    def run(self) -> None:
        """Run rounds until `stop`; sleep while there is nothing to do."""
        with about(lambda: [active.request.name for active in list(self.scheduler.running.values())]):
            while self._inbox.wait(self._pause):
                self.round()
        self._drafting.close()

    def round(self) -> bool:
        """Run one round. Return False if there was nothing to do."""
        laps, scheduler = Laps(self._clock), self.scheduler
        self._intake(laps.started)
        batch = scheduler.admit(self._target.free_blocks, laps.started, self.planner.prefill_allowance)
        if not batch.rows and not batch.frees:
            if self._inbox.take_suspicion():
                self._recovery.check(self._target.info)
            self._breathe(Pressure(self._target.free_blocks, self._target.total_blocks))
            return False
        self._drafting.settle()
        if self._lookups is not None:
            self._guard(LOOKUPS, self._lookups.offer, batch)
        plan = self.planner.plan(batch, self.roster, scheduler.token_budget)
        laps.end()
        drafted = self._drafting.draft(batch, plan, self.planner.meanwhile)
        kept = self.planner.select(batch, drafted, scheduler.token_budget)
        laps.end()
        reply = self._verify(batch, plan, kept)
        if reply is None:
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
        ended = []
        for item in self._inbox.take():
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
        states_from = self._drafting.states_from(batch, plan)
        try:
            work, reply = self._target.step(
                batch, trees, divergence=plan.divergence, states_from=states_from, next_depth=plan.next_depth
            )
        except PortError as error:
            self.scheduler.unsent(batch)
            self.roster.own_head_failed()
            self._recovery.failed(batch, error, self._clock.now())
            return None
        self._drafting.take_states(batch, work, reply)
        self._drafting.take_drafts(batch, work, reply)
        return reply

    def _commit(self, batch: Batch, plan: Plan, trees: Trees, reply: TargetReply, now: float) -> list[Progress]:
        """Give each row what the pass computed for it, and end what is done. Return the requests' progress."""
        outcome, progress = PassOutcome(plan, trees, reply), []
        for row, active in enumerate(batch.rows):
            status = outcome.status[row]
            if status == RowStatus.STALE:
                self.scheduler.reopen(active)
            elif status == RowStatus.FAULT:
                self._close(active)
                progress.append(active.last_word(Finish.ERROR, _no_token(active.request)))
            elif status != RowStatus.NO_BLOCKS:
                found = outcome.give(row, active, now)
                if found is not None:
                    progress.append(found)
                    if found.finish is not None:
                        self._close(active)
        if RowStatus.NO_BLOCKS in outcome.status:
            progress += self._make_room(now)
        if progress:
            self._recovery.progressed()
        return progress

    def _make_room(self, now: float) -> list[Progress]:
        """Preempt a request because the pool is exhausted, or end one that is too big for it."""
        too_big = self.scheduler.make_room(now)
        if too_big is None:
            return []
        self._close(too_big)
        room, tokens = self._target.total_blocks, too_big.num_tokens
        problem = CoveyError(f"the KV pool of {room} blocks cannot hold the {tokens} tokens of this request")
        return [too_big.last_word(Finish.ERROR, problem)]

    def _fail(self, lost: list[ActiveRequest], error: CoveyError) -> None:
        """End these running requests with the error."""
        for active in lost:
            self._close(active)
        if lost:
            self._sink.publish([active.last_word(Finish.ERROR, error) for active in lost])

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
            self._target.resized(total)

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
