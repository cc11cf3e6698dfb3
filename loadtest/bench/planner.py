"""What planning costs: the policy's own time for a round of 32 rows, and a round's time outside target and drafters.

Both are this machine's wall time. The rounds are the real engine's, scheduler's and planner's over an emulated
pair, whose own work (a hash for a model) is timed and taken off.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.console import Console

from covey.bandits.length import Situation
from covey.engine import Engine
from covey.planner import policies
from covey.planner.build import build
from covey.planner.switching import SwitchCosts
from covey.ports import Reply
from covey.profile import SpeculationSettings
from covey.rounds import RoundRecord
from covey.scheduler import Scheduler
from covey.types import JsonDict, Progress, Request, Sampling
from loadtest.bench import report
from loadtest.bench.emulated_pairs import PAIRS
from loadtest.bench.emulated_serving import MODEL, PATIENCE, ports
from loadtest.bench.session import QUICK, Session
from loadtest.bench.statistics import Spread, percentile
from loadtest.simulation.devices import environment
from loadtest.simulation.replay import DRAFTER as REPLAYED
from loadtest.simulation.replay import World
from loadtest.simulation.virtual import VirtualClock

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
        name, max_depth=device.max_depth, max_rows=MAX_ROWS, rng=policy_rng, switch_costs=SwitchCosts()
    )
    world, times, previous = World(device, world_rng), [], 0
    for at in range(count + SETTLING):
        situation = Situation(ROWS, device.max_depth, previous, 1, ((REPLAYED, ROWS),))
        started = time.perf_counter()
        depth = policy.choose(situation)
        chosen = time.perf_counter()
        outcome = world.play(ROWS, depth, 1, previous)
        played = time.perf_counter()
        policy.update(situation, depth, outcome)
        if at >= SETTLING:
            times.append(chosen - started + time.perf_counter() - played)
        previous = depth
    return times


def overheads(policy: str, count: int) -> list[float]:
    """Seconds of rounds of 32 decoding rows outside target and drafters."""
    pair, clock = PAIRS[0], VirtualClock()
    outside = [0.0]  # seconds

    def timed(_model: str, call: Callable[[], Reply]) -> Reply:
        started = time.perf_counter()
        reply = call()
        outside[0] += time.perf_counter() - started
        return reply

    made = ports(pair, clock, blocks=1 << 20, between=timed)
    scheduler = Scheduler(
        max_running=MAX_ROWS,
        max_waiting=MAX_ROWS,
        token_budget=2048,
        growth_tokens=64,
        block_size=pair.profile.target.block_size,
    )
    decoding = [0]

    def observe(record: RoundRecord) -> None:
        decoding[0] = record.decoding if not record.prefill_tokens else 0

    planner = build(SpeculationSettings(policy=policy, max_depth=5), pair.drafters, max_rows=MAX_ROWS)
    engine = Engine(
        made.target(),
        scheduler,
        planner,
        _Nowhere(),
        clock,
        drafters={name: made.drafter(name) for name in pair.drafters},
        observe=observe,
        draft_deadline=PATIENCE,
    )
    for key in range(ROWS):
        prompt = np.full(64, key + MODEL.low, np.int32)
        engine.submit(Request(key, prompt, 1 << 20, Sampling(), len(prompt)))
    times: list[float] = []
    for _ in range(count + SETTLING):
        outside[0] = 0.0
        started = time.perf_counter()
        engine.round()
        took = time.perf_counter() - started
        if decoding[0] == ROWS:
            times.append(took - outside[0])
    engine.stop()
    engine.run()  # returns at once, its threads ended
    return times[SETTLING // 2 :]


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
