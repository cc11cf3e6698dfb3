"""One emulated server in virtual time: the engine, scheduler and planner that serve, over devices that are not there.

Every number from here is a simulation's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from covey.bandits.length import LengthPolicy
from covey.emulated.devices import EmulatedDrafter, EmulatedTarget
from covey.emulated.hash_model import HashModel
from covey.engine import Engine
from covey.planner import policies
from covey.planner.choice import Planner
from covey.planner.cost_table import CostTable
from covey.planner.round_planner import RoundPlanner
from covey.planner.switching import SwitchCosts
from covey.ports import Between, Clock, Ports
from covey.rounds import RoundRecord
from covey.scheduler import Scheduler
from covey.types import JsonDict, Progress, Request, Sampling
from loadtest.bench.elastic_memory import Elastic
from loadtest.bench.emulated_oracle import ORACLE, Oracle
from loadtest.bench.emulated_pairs import Lengths, Pair
from loadtest.bench.loads import Times
from loadtest.bench.statistics import percentile
from loadtest.simulation.virtual import VirtualClock, serve

MODEL = HashModel(32000, low=8)
MAX_DEPTH = 5
SLICES = 60  # points of depth over time
PATIENCE = 3600.0  # seconds of real time for a drafter's answer: a busy machine must not change results


@dataclass(frozen=True, slots=True)
class Served:
    """What one policy made of one load."""

    tokens: int  # of output
    prompts: int  # tokens of prompts that were read
    seconds: float  # from the first arrival to the last token
    latencies: tuple[float, ...]  # arrival to last token
    depth: float  # drafted tokens of a decoding row, mean over rows and rounds
    over_time: tuple[tuple[float, float, float], ...]  # seconds, mean depth, mean rows
    rounds: int
    preemptions: int = 0
    memory: JsonDict = field(default_factory=dict)  # as `Memory.report`, and `most_gained`: blocks at the most
    emitted: tuple[tuple[float, int], ...] = ()  # seconds after the start, tokens

    @property
    def throughput(self) -> float:
        return self.tokens / self.seconds

    def throughput_within(self, spans: Sequence[tuple[float, float]]) -> float:
        """Of these times, from and to how many seconds after the start."""
        tokens = sum(count for at, count in self.emitted if any(start < at <= end for start, end in spans))
        return tokens / sum(end - start for start, end in spans)

    @property
    def total_throughput(self) -> float:
        """With the prompts' tokens, as some papers count."""
        return (self.tokens + self.prompts) / self.seconds

    @property
    def latency(self) -> float:
        return sum(self.latencies) / len(self.latencies)

    @property
    def latency_p99(self) -> float:
        found = percentile(self.latencies, 0.99)
        assert found is not None
        return found


def ports(pair: Pair, clock: Clock, *, blocks: int, pauses_cost: bool = True, between: Between | None = None) -> Ports:
    """The pair's devices, emulated, with so many blocks in the pool."""
    size, emulated = pair.profile.target.block_size, pair.profile.emulated

    def target(_model: str) -> EmulatedTarget:
        held = size * emulated.kv_token_bytes
        return EmulatedTarget(pair.table, MODEL, clock, blocks=blocks, block_size=size, block_bytes=held)

    def drafter(name: str) -> EmulatedDrafter:
        return EmulatedDrafter(
            *(pair.table, MODEL, clock),
            name=name,
            rates=pair.rates[name],
            pauses_cost=pauses_cost,
            resident_bytes=emulated.drafter_mb << 20,
        )

    return Ports(target, drafter, between)


def play(
    pair: Pair,
    policy: str,
    times: Times,
    lengths: Sequence[Lengths],
    seed: int,
    *,
    callers: int = 0,
    until: float = math.inf,
    elastic: Elastic | None = None,
) -> Served:
    """Serve these requests from a start in which nothing is learnt. As in Nightjar's runs the table of C_switch is
    known to whoever uses it; all else is for the policy to find out. With `callers` no more requests than that run at
    once, and the policy starts from the device's curves, as a server does that measures them before it serves. With
    `elastic` drafters leave and come back."""
    settings = pair.profile
    clock = VirtualClock()
    sink = _Sink(clock)
    made = ports(pair, clock, blocks=pair.blocks, pauses_cost=policy != ORACLE)
    scheduler = Scheduler(
        max_running=callers or settings.scheduler.max_running,
        max_waiting=len(times),
        token_budget=settings.scheduler.token_budget,
        growth_tokens=settings.scheduler.growth_tokens,
        block_size=settings.target.block_size,
    )
    records: list[tuple[float, RoundRecord]] = []
    target = made.target()
    engine = Engine(
        target,
        scheduler,
        _planner(policy, pair, seed, pair.table if callers else None),
        sink,
        clock,
        drafters={name: made.drafter(name) for name in pair.drafters},
        draft_deadline=PATIENCE,
        observe=lambda record: records.append((clock.now(), record)),
        worker=clock.worker,
        memory=elastic.memory(target, made, clock) if elastic is not None else None,
    )
    if elastic is not None:
        for name in pair.drafters:
            engine.roster.came(name, made.drafter(name).info())
    asked = [(at, _request(key, at, length, pair)) for key, (at, length) in enumerate(zip(times, lengths))]
    serve(engine, clock, asked, until)
    seconds = clock.now() - times[0]
    engine.stop()
    engine.run()  # returns at once, its threads ended
    latencies = tuple(sink.ended[request.key] - at for at, request in asked if request.key in sink.ended)
    return Served(
        tokens=sink.tokens,
        prompts=sum(len(request.prompt) for _, request in asked if request.key in sink.ended),
        seconds=seconds,
        latencies=latencies,
        depth=_mean_depth(records),
        over_time=_over_time(records, clock.now()),
        rounds=len(records),
        preemptions=scheduler.preemptions,
        memory=_memory(engine, records),
        emitted=tuple(sink.emitted),
    )


def _memory(engine: Engine, records: Sequence[tuple[float, RoundRecord]]) -> JsonDict:
    if engine.memory is None:
        return {}
    most = max(record.total_blocks for _, record in records)
    return engine.memory.report() | {"most_gained": most - engine.lasting_blocks}


class _Sink:
    """Implements `covey.ports.Sink`: counts tokens and notes when requests end."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.tokens = 0
        self.ended: dict[int, float] = {}
        self.emitted: list[tuple[float, int]] = []

    def publish(self, batch: Sequence[Progress]) -> None:
        now = self._clock.now()
        self.emitted.append((now, sum(len(progress.tokens) for progress in batch)))
        for progress in batch:
            self.tokens += len(progress.tokens)
            if progress.finish is not None:
                self.ended[progress.key] = now


def _planner(policy: str, pair: Pair, seed: int, costs: CostTable | None) -> Planner:
    if policy == ORACLE:
        oracle: LengthPolicy = Oracle(pair, MAX_DEPTH)
        return RoundPlanner(oracle, max_depth=MAX_DEPTH)
    switches = {name: pair.table.switch[name] for name in pair.drafters}
    switch_costs = SwitchCosts(switches, pair.drafters[0])
    made = policies.make(
        policy,
        max_depth=MAX_DEPTH,
        max_rows=pair.profile.scheduler.max_running,
        rng=np.random.default_rng(seed),
        switch_costs=switch_costs,
        table=pair.profile.speculation.table,
        costs=costs,
    )
    return RoundPlanner(made, max_depth=MAX_DEPTH, switch_costs=switch_costs)


def _request(key: int, at: float, length: Lengths, pair: Pair) -> Request:
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


def _mean_depth(records: Sequence[tuple[float, RoundRecord]]) -> float:
    rows = sum(record.decoding for _, record in records)
    return sum(record.drafted for _, record in records) / max(1, rows)


def _over_time(records: Sequence[tuple[float, RoundRecord]], end: float) -> tuple[tuple[float, float, float], ...]:
    slices: dict[int, list[tuple[float, RoundRecord]]] = {}
    for at, record in records:
        slices.setdefault(min(SLICES - 1, int(SLICES * at / end)), []).append((at, record))
    return tuple(
        (
            round((index + 0.5) * end / SLICES, 3),
            round(_mean_depth(part), 3),
            round(sum(record.decoding for _, record in part) / len(part), 1),
        )
        for index, part in sorted(slices.items())
    )


def as_json(served: Served) -> Mapping[str, float]:
    return {
        "throughput": served.throughput,
        "total_throughput": served.total_throughput,
        "latency": served.latency,
        "latency_p99": served.latency_p99,
        "depth": served.depth,
    }
