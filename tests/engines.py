"""Engines of tests, and what they make of requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from covey.contracts.clock import RealClock
from covey.contracts.ports import Clock, Drafter, Sink, Target
from covey.contracts.types import Request
from covey.loop.configuration import EngineConfig, EngineHooks
from covey.loop.engine import Engine
from covey.planner.planner import Planner
from covey.requests.scheduler import Scheduler
from tests.fakes import Collector
from tests.static_planner import StaticPlanner

LIMITS = {"max_running": 8, "max_waiting": 64, "token_budget": 64, "growth_tokens": 8, "block_size": 4}


def engine_to(
    sink: Sink,
    target: Target,
    planner: Planner | None = None,
    drafters: Mapping[str, Drafter] | None = None,
    *,
    clock: Clock | None = None,
    hooks: EngineHooks | None = None,
    deadline: float = 60.0,
    caller: str = "",
    own_head: str = "",
    **limits: int,
) -> Engine:
    """Return an engine that publishes to `sink`. Its clock is real, and its drafters may take a minute, unless the
    caller says otherwise; `limits` are the scheduler's."""
    config = EngineConfig(drafters or {}, draft_deadline=deadline, caller=caller, own_head=own_head)
    scheduler = Scheduler(**LIMITS | limits)
    return Engine(target, scheduler, planner or StaticPlanner(), sink, clock or RealClock(), config, hooks)


def finish(engine: Engine, requests: Iterable[Request] = ()) -> None:
    """Submit the requests, and run rounds until nothing is left to do."""
    for each in requests:
        engine.submit(each)
    while engine.round():
        pass


def answers(
    target: Target,
    requests: Iterable[Request],
    planner: Planner | None = None,
    drafters: Mapping[str, Drafter] | None = None,
    **limits: int,
) -> Collector:
    """Return what an engine makes of the requests. Drafters are known from the start."""
    sink = Collector()
    engine = engine_to(sink, target, planner, drafters, **limits)
    for name, drafter in (drafters or {}).items():
        engine.roster.came(name, drafter.info())
    finish(engine, requests)
    return sink
