"""What planning costs: the policy's own time for a round of 32 rows, and a round's time outside target and drafters.

Both are this machine's wall time. The rounds are the real engine's, scheduler's and planner's over an emulated
pair, whose own work (a hash for a model) is timed and taken off.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.console import Console

from covey.bandits.length import Situation
from covey.engine import Engine
from covey.planner import policies
from covey.planner.build import build
from covey.planner.devices import environment
from covey.planner.replay import DRAFTER as REPLAYED
from covey.planner.replay import World
from covey.planner.switching import SwitchCost
from covey.ports import Drafter, Target
from covey.profile import SpeculationSettings
from covey.rounds import RoundRecord
from covey.runtime.emulated import EmulatedDrafter, EmulatedTarget, HashModel
from covey.runtime.virtual import VirtualClock
from covey.scheduler import Scheduler
from covey.types import (
    DrafterInfo,
    DraftReply,
    DraftWork,
    JsonDict,
    Progress,
    Request,
    Sampling,
    TargetInfo,
    TargetReply,
    TargetWork,
)
from loadtest.bench import report
from loadtest.bench.emulated_pairs import PAIRS
from loadtest.bench.emulated_serving import PATIENCE
from loadtest.bench.session import QUICK, Session
from loadtest.bench.statistics import Spread, percentile

ROWS = 32
MAX_ROWS = 64
POLICIES = ("covey", "nightjar", "dsd", "linucb")
OFF, COVEY = "off", "covey"
ROUNDS, QUICK_ROUNDS = 2000, 50
SETTLING = 20  # rounds before any is timed
REPETITIONS, FULL_REPETITIONS = 5, 20


@dataclass
class Measured:
    """Medians by repetition, and all single times of `covey`."""

    choosing: dict[str, list[float]] = field(default_factory=dict)  # microseconds
    rounds: dict[str, list[float]] = field(default_factory=dict)  # milliseconds
    single: dict[str, list[float]] = field(default_factory=dict)

    def summary(self) -> JsonDict:
        """The JSON's keys."""
        choosing = {name: report.as_json(Spread.of(values)) for name, values in self.choosing.items()}
        rounds = {name: report.as_json(Spread.of(values)) for name, values in self.rounds.items()}
        return {
            "gamma_us": (choosing.get(COVEY) or {}).get("median"),
            "gamma_us_p99": percentile(self.single.get("choosing", ()), 0.99),
            "round_overhead_ms": (rounds.get(COVEY) or {}).get("median"),
            "round_overhead_ms_p99": percentile(self.single.get("rounds", ()), 0.99),
            "gamma_us_by_policy": choosing,
            "round_overhead_ms_by_policy": rounds,
            "rows": ROWS,
        }


def run(session: Session) -> None:
    """Measure; results go into the session as they come."""
    measured = Measured()
    session.summarise = measured.summary
    count = QUICK_ROUNDS if session.wanted.size == QUICK else ROUNDS
    repetitions = session.repetitions(REPETITIONS, FULL_REPETITIONS)
    session.notes["rounds"] = count
    for repetition, _ in zip(range(repetitions), session.steps([f"of {repetitions} repetitions"] * repetitions)):
        if repetition and session.out_of_time():
            break
        for name in POLICIES:
            times = choosing(name, count, session.wanted.seed + repetition)
            measured.choosing.setdefault(name, []).append(1e6 * float(np.median(times)))
            if name == COVEY:
                measured.single.setdefault("choosing", []).extend(1e6 * seconds for seconds in times)
        for name in (OFF, COVEY):
            times = overheads(name, count)
            measured.rounds.setdefault(name, []).append(1e3 * float(np.median(times)))
            if name == COVEY:
                measured.single.setdefault("rounds", []).extend(1e3 * seconds for seconds in times)


def choosing(name: str, count: int, seed: int) -> list[float]:
    """Seconds of one choice and one update at 32 rows, round by round, in the replay simulator."""
    device = environment("processor")
    world_rng, policy_rng = np.random.default_rng(seed).spawn(2)
    policy = policies.make(
        name, max_depth=device.max_depth, max_rows=MAX_ROWS, rng=policy_rng, switch_cost=SwitchCost()
    )
    world, times, previous = World(device, world_rng), [], 0
    for at in range(count + SETTLING):
        situation = Situation(ROWS, device.max_depth, previous, 1, ((REPLAYED, ROWS),))
        started = time.perf_counter()
        depth = policy.choose(situation)
        chosen = time.perf_counter()
        outcome = world.play(ROWS, depth, 1, previous == 0 and depth > 0)
        played = time.perf_counter()
        policy.update(situation, depth, outcome)
        if at >= SETTLING:
            times.append(chosen - started + time.perf_counter() - played)
        previous = depth
    return times


def overheads(policy: str, count: int) -> list[float]:
    """Seconds of rounds of 32 decoding rows outside target and drafters."""
    pair, model, clock = PAIRS[0], HashModel(32000, low=8), VirtualClock()
    table, (drafter_name,), block_size = pair.table, pair.drafters, pair.profile.target.block_size
    target = _TimedTarget(EmulatedTarget(table, model, clock, blocks=1 << 20, block_size=block_size))
    drafter = _TimedDrafter(EmulatedDrafter(table, model, clock, name=drafter_name, rates=pair.rates[drafter_name]))
    scheduler = Scheduler(
        max_running=MAX_ROWS,
        max_waiting=MAX_ROWS,
        token_budget=2048,
        growth_tokens=64,
        block_size=block_size,
    )
    decoding = [0]

    def observe(record: RoundRecord) -> None:
        decoding[0] = record.decoding if not record.prefill_tokens else 0

    planner = build(SpeculationSettings(policy=policy, max_depth=5), pair.drafters, max_rows=MAX_ROWS)
    engine = Engine(
        target,
        scheduler,
        planner,
        _Nowhere(),
        clock,
        drafters={drafter_name: drafter},
        observe=observe,
        draft_deadline=PATIENCE,
    )
    for key in range(ROWS):
        prompt = np.full(64, key + model.low, np.int32)
        engine.submit(Request(key, prompt, 1 << 20, Sampling(), len(prompt)))
    times: list[float] = []
    for _ in range(count + SETTLING):
        target.seconds = drafter.seconds = 0.0
        started = time.perf_counter()
        engine.round()
        took = time.perf_counter() - started
        if decoding[0] == ROWS:
            times.append(took - target.seconds - drafter.seconds)
    engine.stop()
    engine.run()  # returns at once, its threads ended
    return times[SETTLING // 2 :]


class _TimedTarget:
    """Implements `covey.ports.Target`: another one, and how long it took."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.seconds = 0.0

    def info(self) -> TargetInfo:
        return self._target.info()

    def step(self, work: TargetWork) -> TargetReply:
        started = time.perf_counter()
        reply = self._target.step(work)
        self.seconds += time.perf_counter() - started
        return reply


class _TimedDrafter:
    """Implements `covey.ports.Drafter` in the same way."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.seconds = 0.0

    def info(self) -> DrafterInfo:
        return self._drafter.info()

    def draft(self, work: DraftWork) -> DraftReply:
        started = time.perf_counter()
        reply = self._drafter.draft(work)
        self.seconds += time.perf_counter() - started
        return reply


class _Nowhere:
    """Implements `covey.ports.Sink`."""

    def publish(self, batch: Sequence[Progress]) -> None:
        """Nobody listens."""


def show(result: JsonDict, console: Console, picture: Path) -> None:  # noqa: ARG001 - two numbers make no curve
    """The table."""
    rows = [
        ["choice and update, us", report.number(result["gamma_us"], 1), report.number(result["gamma_us_p99"], 1)],
        [
            "a round outside the models, ms",
            report.number(result["round_overhead_ms"], 3),
            report.number(result["round_overhead_ms_p99"], 3),
        ],
    ]
    console.print(report.table(f"Planning for {ROWS} rows, covey", ["", "median", "p99"], rows))
