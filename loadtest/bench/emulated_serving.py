"""Plays one emulated server in virtual time: the real engine, scheduler and planner, over emulated devices.

Every number from here is a simulation's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from covey.contracts.ports import Clock, Target
from covey.contracts.profile import Profile
from covey.contracts.types import Finish, Progress, Request, Sampling
from covey.emulated.devices import EmulatedDrafter, EmulatedTarget
from covey.emulated.hash_model import HashModel
from covey.loop.configuration import EngineConfig, EngineHooks
from covey.loop.engine import Engine
from covey.planner import policies
from covey.planner.planner import Planner
from covey.planner.round_planner import RoundPlanner
from covey.planner.switching import SwitchCosts
from covey.requests.rounds import RoundRecord
from covey.requests.scheduler import Scheduler
from loadtest.bench.emulated_pairs import EmulatedPair, RequestLengths
from loadtest.bench.loads import Times
from loadtest.bench.statistics import percentile
from loadtest.simulation.virtual import VirtualClock, serve

MODEL = HashModel(32000, low=8)
MAX_DEPTH = 5
PATIENCE = 3600.0  # seconds of real time for a drafter's answer: a busy machine must not change results


@dataclass(frozen=True, slots=True)
class Served:
    """Holds one policy's result for one load."""

    tokens: int  # of output
    seconds: float  # from the first arrival to the last token
    latencies: tuple[float, ...]  # arrival to last token
    depth: float  # drafted tokens of a decoding row, mean over rows and rounds

    @property
    def throughput(self) -> float:
        return self.tokens / self.seconds

    @property
    def latency(self) -> float:
        return sum(self.latencies) / len(self.latencies)

    @property
    def latency_p99(self) -> float:
        found = percentile(self.latencies, 0.99)
        assert found is not None
        return found


class TimedSink:
    """Implements `covey.contracts.ports.Sink`: notes when tokens came and requests ended, by their keys."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.first: dict[int, float] = {}
        self.last: dict[int, float] = {}
        self.count: dict[int, int] = {}
        self.ended: dict[int, Finish] = {}

    def publish(self, batch: Sequence[Progress]) -> None:
        now = self._clock.now()
        for progress in batch:
            key, tokens = progress.key, len(progress.tokens)
            if tokens:
                self.first.setdefault(key, now)
                self.last[key] = now
                self.count[key] = self.count.get(key, 0) + tokens
            if progress.finish is not None:
                self.ended[key] = progress.finish


@dataclass(frozen=True, slots=True)
class Ran:
    """Holds the results of a server's run."""

    sink: TimedSink
    records: Sequence[RoundRecord]
    engine: Engine
    ended: float  # by its clock


def run(
    settings: Profile,
    target: Target,
    drafters: Mapping[str, EmulatedDrafter],
    planner: Planner,
    clock: VirtualClock,
    asked: Sequence[Request],
    *,
    until: float = math.inf,
) -> Ran:
    """Serve requests as they fall due, until all have ended or the time is up."""
    sink, records = TimedSink(clock), list[RoundRecord]()
    scheduler = Scheduler.of(replace(settings.scheduler, max_waiting=len(asked)), settings.target.block_size)
    engine = Engine(
        target,
        scheduler,
        planner,
        sink,
        clock,
        EngineConfig(drafters, draft_deadline=PATIENCE),
        EngineHooks(observe=records.append, worker=clock.worker),
    )
    serve(engine, clock, [(request.arrival, request) for request in asked], until)
    ended = clock.now()
    engine.stop()
    engine.run()  # returns at once, its threads ended
    return Ran(sink, records, engine, ended)


def play(
    pair: EmulatedPair,
    policy: str,
    times: Times,
    lengths: Sequence[RequestLengths],
    seed: int,
) -> Served:
    """Serve these requests from a start with nothing learnt. In Nightjar's runs the table of C_switch is known, so a
    policy that uses it has it here; it must learn everything else."""
    clock = VirtualClock()
    target = EmulatedTarget(pair.table, MODEL, clock, blocks=pair.blocks, block_size=pair.profile.target.block_size)
    drafters = {
        name: EmulatedDrafter(pair.table, MODEL, clock, name=name, rates=pair.rates[name]) for name in pair.drafters
    }
    asked = [_request(key, at, length, pair) for key, (at, length) in enumerate(zip(times, lengths))]
    ran = run(pair.profile, target, drafters, _planner(policy, pair, seed), clock, asked)
    sink, rows = ran.sink, sum(record.decoding for record in ran.records)
    whole = [request for request in asked if request.key in sink.ended]
    return Served(
        tokens=sum(sink.count.values()),
        seconds=ran.ended - times[0],
        latencies=tuple(sink.last[request.key] - request.arrival for request in whole),
        depth=sum(record.drafted for record in ran.records) / max(1, rows),
    )


def _planner(policy: str, pair: EmulatedPair, seed: int) -> Planner:
    switches = {name: pair.table.switch[name] for name in pair.drafters}
    switch_costs = SwitchCosts(switches, pair.drafters[0])
    setting = policies.Setting(
        policy,
        max_depth=MAX_DEPTH,
        max_rows=pair.profile.scheduler.max_running,
        rng=np.random.default_rng(seed),
        switch_costs=switch_costs,
        table=pair.profile.speculation.table,
    )
    return RoundPlanner(policies.make(setting), max_depth=MAX_DEPTH, switch_costs=switch_costs)


def _request(key: int, at: float, length: RequestLengths, pair: EmulatedPair) -> Request:
    prompt = np.full(length.prompt, key % (MODEL.vocab_size - MODEL.low) + MODEL.low, np.int32)
    return Request(
        key,
        prompt,
        length.output,
        Sampling(),
        length.prompt,
        tenant=length.domain,
        drafter=pair.domains[length.domain],
        arrival=at,
    )
