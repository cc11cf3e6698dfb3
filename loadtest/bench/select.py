"""What it takes to choose the drafts that are worth verifying: on arrays alone, and as a share of rounds.

`select_us` is the least time of one selection for 64 requests with 64 candidate nodes each, half of the requests with
objectives: noise only adds. Selections are timed by what their thread computes, so that others on the machine do not
count. What is prepared while drafters draft is in `select_us`, and in no share of a round: no round waits for it. The
bundled models serve in this process, 16 requests at once. On the emulated device rounds take virtual time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console

from covey import profile
from covey.active import ActiveRequest
from covey.clock import RealClock
from covey.drafters import load_drafter
from covey.engine import Engine
from covey.planner.build import build
from covey.planner.choice import Planner
from covey.planner.expectations import Expectations
from covey.planner.worth import SAMPLED, Worth
from covey.roster import Roster
from covey.rounds import Drafted, Plan, Round, RoundRecord
from covey.scheduler import Batch, Scheduler
from covey.target.runner import TargetRunner
from covey.types import JsonDict, Objective, Progress, Request, Sampling, Trees
from covey_client.costs.table import CostTable
from loadtest.bench import loads, report, slo_serving
from loadtest.bench.session import QUICK, Session

ROWS, NODES, WIDTH = 64, 64, 8
REPEATS = 80
DRAFTER = "draft_general"
BUNDLED_ROWS, BUNDLED_TOKENS = 16, 64
PAIR, RATE, REQUESTS = "emulated-70b-4x80g", 6.0, 60


class Stopwatch:
    """Implements `Planner`: one that is timed while it selects."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self.seconds = 0.0

    def plan(self, batch: Batch, roster: Roster, budget: int) -> Plan:
        return self._planner.plan(batch, roster, budget)

    def select(self, batch: Batch, drafted: Drafted, budget: int) -> Trees:
        started = time.thread_time()
        kept = self._planner.select(batch, drafted, budget)
        self.seconds += time.thread_time() - started
        return kept

    def readable(self, rows: int, drafts: float, tpot: float, seconds: float) -> int | None:
        return self._planner.readable(rows, drafts, tpot, seconds)

    def learn(self, done: Round) -> None:
        self._planner.learn(done)

    def meanwhile(self, batch: Batch, plan: Plan, roster: Roster) -> None:
        self._planner.meanwhile(batch, plan, roster)


def run(session: Session) -> None:
    """Measure; results go into the session as they come."""
    found: dict[str, object] = {}
    session.summarise = lambda: dict(found)
    quick = session.wanted.size == QUICK
    measures: dict[str, Callable[[], float]] = {
        "select_us": lambda: 1e6 * alone(20 if quick else REPEATS),
        "bundled": lambda: bundled(8 if quick else BUNDLED_TOKENS),
        "emulated": lambda: emulated(8 if quick else REQUESTS),
    }
    for name, label in zip(measures, session.steps(list(measures))):
        found[name] = measures[label]()
    found["share_of_round"] = {name: found.pop(name) for name in ("bundled", "emulated") if name in found}


def alone(repeats: int) -> float:
    """Seconds of one selection, the least of some."""
    rng, levels = np.random.default_rng(0), NODES // WIDTH
    curves = CostTable(
        "made up", "", tuple((rows, tokens, 0.02 + 1e-4 * tokens) for rows in (1, ROWS) for tokens in (rows, 4096))
    )
    selector = Worth(Expectations(levels, ROWS, curves), (DRAFTER,), levels, teaches=True)
    parents = np.concatenate(
        [np.full(WIDTH, -1), *((level - 1) * WIDTH + rng.integers(0, WIDTH, WIDTH) for level in range(1, levels))]
    )
    trees = Trees(
        np.arange(0, ROWS * NODES + 1, NODES, dtype=np.int32),
        rng.integers(0, 4096, ROWS * NODES).astype(np.int32),
        np.tile(parents, ROWS).astype(np.int32),
        -np.tile(np.repeat(np.arange(levels), WIDTH), ROWS) - rng.random(ROWS * NODES).astype(np.float32),
    )
    rows = []
    for key in range(ROWS):
        objective = Objective("interactive", 0.5, 0.02) if key % 2 else Objective()
        active = ActiveRequest(Request(key, np.ones(1, np.int32), 256, Sampling(), 1, objective=objective))
        active.first_token, active.output = 0.0, [1] * int(rng.integers(20, 80))
        rows.append(active)
    batch = Batch(rows, np.ones(ROWS, np.int32), (), (), ROWS, now=1.0, fastest=0.001)
    drafted = Drafted(trees, np.ones(ROWS, np.bool_), {DRAFTER: 0.01}, {DRAFTER: 0.0}, {}, (DRAFTER,) * ROWS)
    least = math.inf
    for _ in range(repeats):
        started = time.thread_time()
        for _ in range(SAMPLED):
            selector.prepare(batch)
            selector.select(batch, drafted, 4096)
        least = min(least, (time.thread_time() - started) / SAMPLED)
    return least


class _Nobody:
    """Implements `covey.ports.Sink`."""

    def publish(self, batch: Sequence[Progress]) -> None:
        """Nobody listens."""


def bundled(tokens: int) -> float:
    """Of rounds that draft."""
    settings = profile.load(profile.DEFAULT_PROFILE)
    folder = Path(__file__).resolve().parents[2] / "model_repository"
    target = TargetRunner.load(
        folder / "target" / "1", settings.target, token_budget=settings.scheduler.token_budget, name="target"
    )
    speculation = replace(settings.speculation, policy="fixed:4", selection="worth", width=3)
    planner = build(speculation, (DRAFTER,), max_rows=BUNDLED_ROWS)
    watch = Stopwatch(planner)
    records: list[RoundRecord] = []
    scheduler = Scheduler(
        max_running=BUNDLED_ROWS,
        max_waiting=BUNDLED_ROWS,
        token_budget=settings.scheduler.token_budget,
        growth_tokens=tokens,
        block_size=settings.target.block_size,
    )
    drafter = load_drafter("neural", folder / DRAFTER / "1", folder / "target" / "1", settings, name=DRAFTER)
    engine = Engine(
        target, scheduler, watch, _Nobody(), RealClock(), drafters={DRAFTER: drafter}, observe=records.append
    )
    rng = np.random.default_rng(0)
    for key in range(BUNDLED_ROWS):
        prompt = rng.integers(300, 4000, 40).astype(np.int32)
        engine.submit(Request(key, prompt, tokens, Sampling(temperature=1.0, seed=key), len(prompt)))
    while engine.round():
        pass
    return watch.seconds / sum(
        record.plan_seconds + record.draft_seconds + record.verify_seconds + record.commit_seconds
        for record in records
        if record.drafted
    )


def emulated(count: int) -> float:
    """The selection's real time over the virtual time of rounds that draft."""
    watches: list[Stopwatch] = []

    def watched(planner: Planner) -> Planner:
        watches.append(Stopwatch(planner))
        return watches[-1]

    (covey,) = (system for system in slo_serving.SYSTEMS if system.name == "covey")
    mix = {slo_serving.URGENT: 0.6, slo_serving.CHAT: 0.2, slo_serving.SUMMARY: 0.2}
    load = slo_serving.asked(loads.poisson(RATE, count, 1), mix, 1)
    point = slo_serving.play(PAIR, covey, load, 1, wrap=watched)
    return watches[0].seconds / point.drafting_seconds


def show(result: JsonDict, console: Console, picture: Path) -> None:  # noqa: ARG001 - no curve
    shares = result.get("share_of_round", {})
    rows = [
        [f"{ROWS} requests x {NODES} nodes, us", report.number(result.get("select_us"), 0)],
        *([f"share of a round, {name}", report.number(share, 4)] for name, share in shares.items()),
    ]
    console.print(report.table("choosing drafts", ["", ""], rows))
