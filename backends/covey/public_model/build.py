"""Builds the engine and the parts around it from a profile, a target and its drafters."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from covey.contracts import profile, registry
from covey.contracts.errors import CoveyError, PortError
from covey.contracts.objectives import Classes
from covey.contracts.ports import Clock, Companion, Drafter, Residency, Target
from covey.contracts.profile import Profile
from covey.contracts.tenants import TenantRules
from covey.contracts.types import ANY_VOCABULARY, Open, TargetInfo
from covey.drafters.companion import LookedUp
from covey.drafters.hit_rates import HitRates
from covey.kv.elastic import POLICIES, Budget
from covey.loop.configuration import EngineConfig, EngineHooks
from covey.loop.engine import Engine
from covey.loop.memory import Memory
from covey.planner.baseline import Baseline
from covey.planner.build import build
from covey.planner.cost_table import load_costs
from covey.process import cpu
from covey.process.guard import Guard
from covey.process.traces import Traces
from covey.process.worker import Thread
from covey.public_model import spans
from covey.public_model.service import Service
from covey.requests.roster import Roster
from covey.requests.rounds import RoundRecord
from covey.requests.scheduler import Scheduler
from covey.text import model_folder
from covey.text.grammar_process import Compiler
from covey.text.grammar_verdicts import Verdicts
from covey.text.streaming import Served, Streamer
from covey.text.tokenization import load_tokenizer
from covey.tritonio.fields import RequestParser
from covey.tritonio.reports import Reports
from covey_client.costs.table import CostTable

if TYPE_CHECKING:
    from covey.tritonio.metrics import Metrics

RESPONSE_SECONDS = 0.005  # of processor time between responses; each takes some 0.7 ms, in Triton and outside
log = logging.getLogger("covey.orchestrator")


@dataclass(frozen=True)
class Builder:
    """Holds the parts that all engines of one model share. None depends on the target's facts."""

    model: str
    profile: Profile
    target: Target
    residency: Residency
    clock: Clock
    metrics: Metrics
    guard: Guard
    caller: str
    secret: str  # the administrator's
    costs: CostTable | None  # the table that the profile names
    traces: Traces | None = None

    def service(
        self,
        info: TargetInfo,
        drafters: Mapping[str, Drafter],
        costs: CostTable | None,
        failed: Callable[[Roster, str, CoveyError], None],
        recover: Callable[[PortError], None],
    ) -> Service:
        """Build an engine and the parts around it. `failed` is called after every failure of a drafter; `recover`
        brings the target back."""
        chosen, metrics, guard = self.profile, self.metrics, self.guard
        tokenizer = load_tokenizer(info.folder)
        apart = RESPONSE_SECONDS / cpu.cores()

        def ended(served: Served) -> None:
            guard("metrics", metrics.served, served)
            if self.traces is not None:
                guard("traces", spans.emit, self.traces, served)

        streamer = Streamer(tokenizer, self.clock, served=ended, emulated=info.emulated, apart=apart)
        metrics.target(info, profile.left_out(), model_folder.read(info.folder))
        baseline = Baseline(costs)
        if baseline.seconds is None:
            log.info("no cost table has the time of a plain token: relative latency classes apply once it is learnt")
        classes = Classes(chosen.slo.classes, lambda: baseline.seconds)
        planner = build(
            chosen.speculation,
            tuple(drafters),
            max_rows=chosen.scheduler.max_running,
            costs=costs,
        )

        def observe(record: RoundRecord) -> None:
            for part, learn in (("baseline", baseline.update), ("metrics", metrics.round), ("reports", reports.round)):
                guard(part, learn, record)

        hooks = EngineHooks(
            drafter_failed=lambda name, error: failed(engine.roster, name, error),
            recover=recover,
            observe=observe,
            memory=partial(self._memory, info),
            guard=guard,
        )
        config = EngineConfig(
            drafters,
            self._companion() if drafters else None,
            chosen.speculation.max_depth,
            chosen.speculation.draft_deadline_ms / 1000,
            self.caller,
            info,
            chosen.target.head if info.drafts_ahead and planner.chains else "",
        )
        engine = Engine(self.target, self._scheduler(info), planner, streamer, self.clock, config, hooks)
        roster, memory = engine.roster, engine.memory
        assert memory is not None, "it was given"
        decisions = planner.decisions.plain

        reports = Reports(decisions, info, chosen, roster.states, memory, self.secret)
        for gauges in (classes.targets, roster.gauges, memory.gauges):
            metrics.watch(gauges)
        for totals in (planner.figures, memory.totals):
            metrics.follow(totals)
        compiler = Compiler(info.folder, info.vocab_size)
        parser = RequestParser(
            tokenizer,
            info,
            chosen.limits,
            roster,
            classes,
            chosen.tenants.priorities,
            grammars=Verdicts(compiler.compiled),
        )
        streamer.start(engine)
        room = f"{info.longest} tokens in a request, {info.pool_tokens} in the KV pool"
        log.info("serving %s: %s; up to %s", info.model, _computed(info), room)
        return Service(engine, memory, streamer, parser, reports, compiler)

    def _companion(self) -> Callable[[Open], Companion] | None:
        """Return the maker of lookup companions; None if lookups are off, the policy does not weigh them, or the target
        is emulated."""
        chosen, speculation = self.profile, self.profile.speculation
        kind, asked = speculation.lookup, speculation.policy == "adaptive" and speculation.selection == "all"
        if kind == "off" or not asked or chosen.target.emulated:
            return None
        made_by = registry.find(registry.DRAFTERS[kind].made_by)
        drafter, rates = made_by(chosen.drafter, name=kind, vocab_size=ANY_VOCABULARY), HitRates()
        return lambda opening: LookedUp(drafter, opening, rates)

    def _scheduler(self, info: TargetInfo) -> Scheduler:
        tenants = self.profile.tenants
        return Scheduler.of(
            self.profile.scheduler,
            info.block_size,
            tenants=TenantRules.read(tenants.weights, tenants.max_running, tenants.max_waiting),
        )

    def _memory(self, info: TargetInfo, roster: Roster, drop: Callable[[str], None]) -> Memory:
        settings = self.profile.memory
        return Memory(
            self.target,
            self.residency,
            roster,
            self.clock,
            POLICIES[settings.policy](),
            Budget(info.least_blocks, info.block_bytes),
            worker=Thread("residency"),
            drop=drop,
            device=info.device.partition(":")[0],
            calm=settings.calm_seconds,
            breathes=settings.policy != "off" and info.block_bytes > 0,
        )


def _computed(info: TargetInfo) -> str:
    """Return the target's arithmetic and weight types, its numerics and its processor."""
    weights = f", weights in {info.weight_type}" if info.weight_type not in ("", info.dtype) else ""
    processor = f", for {info.processor}" if info.processor else ""
    return f"{info.dtype}{weights}, {info.numerics} numerics{processor}"


def named_costs(chosen: Profile) -> CostTable | None:
    """Return the cost table that the profile names; None if it names none. Raises SettingError."""
    costs = chosen.speculation.costs
    return load_costs(profile.costs_file(costs)) if costs and costs != profile.AUTO else None
