"""Policies against fixed depths in a closed loop: so many callers, each asking again when its last answer is complete.

One run, entrants in an order drawn anew each time, requests the same for all. The best of `off` and `fixed:k` is picked
on odd repetitions and compared on even ones, then the other way round; of a single repetition the best is picked on the
very runs it is compared on, which flatters it.

Two parts, by `--part`: `steady`, of policies that have seen what a round costs, and `first`, of one that knows nothing
(`first_minute.py`). Both together share the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from covey.errors import SettingError
from covey.types import JsonDict
from loadtest.bench import first_minute, report, workload
from loadtest.bench.line_up import Entrant, asks, line_up, warm_up
from loadtest.bench.policies import COVEY, LEARNERS, OFF, STATIC, Measured
from loadtest.bench.session import QUICK, Session

CONCURRENCIES, QUICK_CONCURRENCIES = (1, 2, 4, 8, 16, 32), (1, 4)
REQUESTS = {1: 5, 2: 8, 4: 14, 8: 24, 16: 40, 32: 72}
REPETITIONS, FULL_REPETITIONS = 6, 20


STEADY, FIRST = "steady", "first"
SHARE = 0.35  # of the time, for the first of two parts


def run(session: Session) -> None:
    """Measure; results go into the session as they come."""
    parts = session.wanted.parts or (STEADY, FIRST)
    unknown = set(parts) - {STEADY, FIRST}
    if unknown:
        raise SettingError(f"--part: got {unknown.pop()!r}, allowed: {STEADY}, {FIRST}")
    measured, first = Measured(), first_minute.Measured()
    session.summarise = lambda: measured.summary() | first.summary()
    if STEADY in parts:
        _steady(session, measured, SHARE if FIRST in parts else 1.0)
    if FIRST in parts:
        first_minute.run(session, first)


def _steady(session: Session, measured: Measured, share: float) -> None:
    quick = session.wanted.size == QUICK
    repetitions = session.repetitions(REPETITIONS, FULL_REPETITIONS)
    with line_up(session) as entrants:
        warm_up(session, entrants)
        for repetition in range(repetitions):
            if repetition and session.out_of_time(share):
                break
            concurrencies = QUICK_CONCURRENCIES if quick else CONCURRENCIES
            _repetition(session, measured, entrants, repetition, concurrencies, share)
            session.notes["repetitions"] = repetition + 1


def _repetition(
    session: Session,
    measured: Measured,
    entrants: list[Entrant],
    repetition: int,
    concurrencies: tuple[int, ...],
    share: float,
) -> None:
    seed = session.wanted.seed * 1000 + repetition
    steps = [(c, entrant) for c in concurrencies for entrant in workload.shuffled(entrants, seed, c)]
    labels = [f"repetition {repetition + 1}: {entrant.name} at {c}" for c, entrant in steps]
    for (concurrency, entrant), _ in zip(steps, session.steps(labels)):
        if repetition and session.out_of_time(share):
            return
        tenant = f"{repetition} {entrant.name} {concurrency}"  # finds nothing of the others' in any cache
        done = entrant.asks.run(asks(REQUESTS[concurrency], seed), concurrency, tenant=tenant)
        measured.runs[concurrency][entrant.name].append(done)


def show(result: JsonDict, console: Console, picture: Path) -> None:
    """The tables; and as a picture, since throughput itself is mostly the concurrency's, what it is over `off`'s."""
    first = result.get("first_minute_covey_over_best_static") or {"points": {}}
    if first["points"]:
        columns = ["at", "covey over best static", "interval", "best static", "with state kept"]
        mean = report.number(first["geometric_mean"], 3)
        title = f"First {first['seconds']:g} s of a planner that knows nothing: {mean}"
        console.print(report.table(title, columns, first_minute.rows(first["points"])))
    points: JsonDict = result["points"]
    if not points:
        return
    there = {name for point in points.values() for name in point["tokens_per_second"]}
    names = [name for name in (*STATIC, *LEARNERS) if name in there]
    rows = [
        [
            name,
            *(
                report.number((point["tokens_per_second"].get(name) or {}).get("median"), 0)
                for point in points.values()
            ),
        ]
        for name in names
    ]
    rows.append(["covey over best static", *(report.number(p["covey_over_best_static"], 3) for p in points.values())])
    rows.append(["covey's depth", *(report.number(p["depth"].get(COVEY), 1) for p in points.values())])
    console.print(report.table("Closed loop, tokens per second", ["at", *points], rows))
    speeds, depths = {}, {}
    for name in names:
        speeds[name] = _line(points, [_over_off(point["tokens_per_second"], name) for point in points.values()])
        depths[name] = _line(points, [point["depth"].get(name) for point in points.values()])
    x = "concurrency"
    shown = [
        report.Panel("Throughput", x, "tokens per second over off's", speeds, log_x=True, from_zero=False),
        report.Panel("Depth", x, "drafted tokens a row and round", depths, log_x=True),
    ]
    report.panels(picture, "Policies and fixed depths in a closed loop, medians", shown)


def _line(points: JsonDict, values: Sequence[float | None]) -> list[tuple[float, float]]:
    """By concurrency, where it is known."""
    return [(float(concurrency), y) for concurrency, y in zip(points, values) if y is not None]


def _over_off(rates: JsonDict, name: str) -> float | None:
    mine, off = rates.get(name), rates.get(OFF)
    return mine["median"] / off["median"] if mine and off else None
