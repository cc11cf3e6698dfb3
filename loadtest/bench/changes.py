"""How soon policies follow sudden changes, in virtual time: of acceptance, and of what drafting takes.

The policies are the ones that serve, the device is the emulated 7B pair's cost table with noise: nothing here is
hardware. The oracle knows the device and the acceptance of the moment, and resumes for nothing. A change is followed
after as many rounds as pass before the first 100 in a row at 97 % of its speed; where there are none in the phase, the
phase's length stands. A seed is one run through all phases, with the same draws for each policy.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from rich.console import Console

from covey.planner import policies
from covey.planner.cost_table import Surface
from covey.planner.switching import SwitchCosts
from covey.types import JsonDict
from loadtest.bench import report
from loadtest.bench.emulated_pairs import PAIRS
from loadtest.bench.session import QUICK, Session
from loadtest.bench.statistics import Spread
from loadtest.simulation.replay import Costs, Environment, Replay, replay

BATCHES = (1, 4, 32)
DEPTH, MAX_ROWS, NOISE = 5, 64, 0.08
SHARE, WINDOW = 0.97, 100
COVEY = "covey"
POLICIES = (COVEY, "nightjar")
SEEDS, FULL_SEEDS = 11, 31
SHORTER = 10  # times, where quick
POINT = 50  # rounds to a point of the picture


@dataclass(frozen=True)
class Phase:
    """So many rounds alike."""

    name: str
    rounds: int
    rate: float  # of acceptance, at each position
    dearness: float = 1.0  # what drafting takes, in times of the cost table's


DOWN_UP, UP, DEAR = "acceptance down and up", "acceptance up from off", "drafter dear and back"
SCENARIOS = {
    DOWN_UP: (Phase("0.8", 5000, 0.8), Phase("to 0.3", 8000, 0.3), Phase("to 0.8", 3000, 0.8)),
    UP: (Phase("0.15", 5000, 0.15), Phase("to 0.85", 8000, 0.85)),
    DEAR: (Phase("usual", 5000, 0.8), Phase("four times dearer", 3000, 0.8, 4.0), Phase("as before", 8000, 0.8)),
}


class Cell(NamedTuple):
    scenario: str
    rows: int
    policy: str


@dataclass(frozen=True)
class Followed:
    """One phase of one run."""

    rounds: int  # until it is as fast as it should be
    meanwhile: float  # efficiency of those, or of the first window
    steady: float  # and of the phase's last half


@dataclass(frozen=True)
class Run:
    """One cell with one seed."""

    followed: dict[str, Followed]  # by phase
    curve: list[tuple[int, float]]  # (round, efficiency)


@dataclass
class Measured:
    """One run per seed of each cell."""

    runs: dict[Cell, list[Run]] = field(default_factory=dict)

    def summary(self) -> JsonDict:
        """The JSON's keys."""
        found: JsonDict = {}
        for cell, runs in sorted(self.runs.items()):
            found.setdefault(cell.scenario, {}).setdefault(str(cell.rows), {})[cell.policy] = {
                "phases": {name: _middle([run.followed[name] for run in runs]) for name in runs[0].followed},
                "efficiency_over_rounds": [
                    [points[0][0], median(efficiency for _, efficiency in points)]
                    for points in zip(*(run.curve for run in runs))
                ],
            }
        return {"emulated": True, "clock": "virtual", "share": SHARE, "window": WINDOW, "scenarios": found}


def _middle(followed: Sequence[Followed]) -> JsonDict:
    return {
        "rounds": report.as_json(Spread.of([float(each.rounds) for each in followed])),
        "efficiency_meanwhile": median(each.meanwhile for each in followed),
        "steady_efficiency": median(each.steady for each in followed),
    }


def run(session: Session) -> None:
    """Measure; results go into the session as they come."""
    measured, quick = Measured(), session.wanted.size == QUICK
    session.summarise = measured.summary
    seeds = session.repetitions(SEEDS, FULL_SEEDS)
    session.notes["seeds"] = seeds
    cells = [Cell(scenario, rows, policy) for scenario in SCENARIOS for rows in BATCHES for policy in POLICIES]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        waiting: dict[Future[Run], Cell] = {}
        for seed in range(seeds):
            for cell in cells:
                phases = shorter(SCENARIOS[cell.scenario]) if quick else SCENARIOS[cell.scenario]
                waiting[pool.submit(play, cell.policy, cell.rows, phases, session.wanted.seed * 1000 + seed)] = cell
        labels = [f"{len(waiting)} runs in virtual time"] * len(waiting)
        try:
            for call, _ in zip(as_completed(waiting), session.steps(labels)):
                measured.runs.setdefault(waiting[call], []).append(call.result())
                if session.out_of_time():
                    session.interrupted = True
                    break
        finally:
            pool.shutdown(cancel_futures=True)


def shorter(phases: Sequence[Phase]) -> tuple[Phase, ...]:
    return tuple(Phase(each.name, each.rounds // SHORTER, each.rate, each.dearness) for each in phases)


def play(
    name: str, rows: int, phases: Sequence[Phase], seed: int, costs: Costs | None = None, change: float = 0.0
) -> Run:
    """One run of a policy that has learnt nothing before; `costs` and `change`: on another device."""
    starts = [0, *accumulate(phase.rounds for phase in phases)]
    environment = Environment(
        costs or device(),
        tuple((start, (phase.rate,) * DEPTH) for start, phase in zip(starts, phases)),
        NOISE,
        dearness=tuple((start, phase.dearness) for start, phase in zip(starts, phases)),
        change=change,
    )
    world, choices = np.random.default_rng(seed).spawn(2)
    policy = policies.make(name, max_depth=DEPTH, max_rows=MAX_ROWS, rng=choices, switch_costs=SwitchCosts())
    played = replay(policy, environment, [rows] * starts[-1], world)
    followed = {phase.name: _follow(played, *span) for phase, span in zip(phases, pairwise(starts))}
    points = range(0, starts[-1], POINT)
    return Run(followed, [(at, played.between(at, at + POINT)) for at in points])


def _follow(played: Replay, start: int, stop: int) -> Followed:
    rounds = played.until(SHARE, start, stop, WINDOW)
    return Followed(
        rounds, played.between(start, start + max(rounds, WINDOW)), played.between((start + stop) // 2, stop)
    )


@functools.cache
def device() -> Costs:
    """The first emulated pair's, with its first drafter."""
    table, name = PAIRS[0].table, PAIRS[0].drafters[0]
    overhead = Surface((1, rows, seconds) for rows, seconds in table.overhead)
    return Costs(
        verify=functools.cache(Surface(table.verify)),
        draft=functools.cache(Surface(table.draft[name])),
        overhead=functools.cache(lambda rows: overhead(1, rows)),
        switch=functools.cache(Surface(table.switch[name])),
    )


def show(result: JsonDict, console: Console, picture: Path) -> None:
    """A table for each scenario, and a picture of the median efficiency over rounds."""
    heads = ["phase", "batch", "policy", f"rounds to {SHARE:.0%}", "quartiles", "meanwhile", "steady"]
    for scenario, batches in result["scenarios"].items():
        rows = [
            [
                *(phase.name, batch, policy),
                *_span(found["rounds"]),
                *(report.number(found[key], 3) for key in ("efficiency_meanwhile", "steady_efficiency")),
            ]
            for phase in SCENARIOS[scenario]
            for batch, by_policy in sorted(batches.items(), key=lambda each: int(each[0]))
            for policy, found in ((policy, cell["phases"][phase.name]) for policy, cell in by_policy.items())
        ]
        console.print(report.table(f"Emulated: {scenario}", heads, rows))
    report.panels(picture, "Sudden changes, emulated: median efficiency against the oracle", list(_panels(result)))


def _span(rounds: JsonDict) -> tuple[str, str]:
    return report.number(rounds["median"], 0), f"{rounds['low']:.0f} to {rounds['high']:.0f}"


def _panels(result: JsonDict) -> Iterator[report.Panel]:
    for scenario, batches in result["scenarios"].items():
        for batch, by_policy in batches.items():
            lines = {policy: cell["efficiency_over_rounds"] for policy, cell in by_policy.items()}
            yield report.Panel(f"{scenario}, batch {batch}", "round", "of the oracle", lines, from_zero=False)
