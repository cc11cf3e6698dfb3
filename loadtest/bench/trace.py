"""Policies against fixed depths in an open loop: arrivals come when they come, in two peaks and as in Azure's trace.

Loads are scaled to what this machine serves without speculation, measured first: quiet hours in which drafting pays and
peaks in which it does not. Throughput is tokens over the time from the first arrival to the last token; latency is from
the moment a request was due to its last token. The best static choice is the best at that very figure, picked on odd
repetitions and compared on even ones, then the other way round; of a single repetition it is picked on the very run it
is compared on, which flatters it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median

from rich.console import Console

from covey.types import JsonDict
from loadtest.bench import loads, report, workload
from loadtest.bench.line_up import Entrant, asks, line_up, warm_up
from loadtest.bench.loads import AZURE, TWO_PEAKS, Times
from loadtest.bench.policies import COVEY, NIGHTJAR, OFF, STATIC
from loadtest.bench.scrape import Watch
from loadtest.bench.session import QUICK, Session
from loadtest.bench.statistics import best_over, percentile
from loadtest.bench.work import Run

SECONDS, QUICK_SECONDS = 20.0, 2.0  # of one run, at most
SHARE = 0.7  # of the whole bench's time that runs may take
REPETITIONS, FULL_REPETITIONS = 2, 6
FULL_HOUSE = 32  # callers that show what can be served


@dataclass
class Measured:
    """All runs so far, by load and entrant, and what depths were used meanwhile in the first of them."""

    runs: dict[str, dict[str, list[Run]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    depths: dict[str, dict[str, list[tuple[float, float]]]] = field(default_factory=lambda: defaultdict(dict))

    def summary(self) -> JsonDict:
        """The JSON's keys; a trace that was not there is null."""
        return {load: self._load(load) if load in self.runs else None for load in (AZURE, TWO_PEAKS)}

    def _load(self, load: str) -> JsonDict | None:
        runs = self.runs[load]
        whole = min(len(done) for done in runs.values())
        if not whole or COVEY not in runs:
            return None
        found = {name: _figures(done[:whole]) for name, done in runs.items()}
        rates = {name: [run.rate for run in done[:whole]] for name, done in runs.items()}
        haste = {name: [1.0 / _latency(run) for run in done[:whole]] for name, done in runs.items()}
        fastest = max((name for name in STATIC if name in found), key=lambda name: found[name]["throughput"])
        soonest = min((name for name in STATIC if name in found), key=lambda name: found[name]["latency"])
        return {
            "throughput_covey_over_best_static": _over_best(rates, fastest),
            "latency_best_static_over_covey": _over_best(haste, soonest),
            "best_static": {"throughput": fastest, "latency": soonest},
            "policies": found,
            "repetitions": whole,
            "depth_over_time": {name: [list(p) for p in points] for name, points in self.depths[load].items()},
        }


def run(session: Session) -> None:
    """Measure; results go into the session as they come."""
    measured = Measured()
    session.summarise = measured.summary
    wanted = session.wanted
    trace = loads.azure(wanted.data)
    repetitions = session.repetitions(REPETITIONS, FULL_REPETITIONS)
    with line_up(session) as entrants:
        warm_up(session, entrants)
        capacity = _capacity(entrants)
        kinds = 1 if trace is None else 2
        share = 60 * SHARE * wanted.minutes / (len(entrants) * kinds * repetitions)
        seconds = QUICK_SECONDS if wanted.size == QUICK else min(SECONDS, share)
        session.notes |= {"capacity_without_speculation": capacity, "seconds": seconds}
        for repetition in range(repetitions):
            if repetition and session.out_of_time():
                break
            seed = wanted.seed * 1000 + repetition
            for load, times in loads.around(capacity, seconds, trace, seed).items():
                _repetition(session, measured, entrants, load, times, repetition)
            session.notes["repetitions"] = repetition + 1


def _capacity(entrants: Sequence[Entrant]) -> float:
    """Requests a second that decoding without speculation can serve."""
    plain = next(entrant for entrant in entrants if entrant.name == OFF)
    done = plain.asks.run(asks(3 * FULL_HOUSE, 1), FULL_HOUSE, tenant="capacity")
    return len(done.answers) / done.seconds


def _repetition(
    session: Session, measured: Measured, entrants: Sequence[Entrant], load: str, times: Times, repetition: int
) -> None:
    order = workload.shuffled(entrants, session.wanted.seed, repetition)
    labels = [f"repetition {repetition + 1}: {load}, {entrant.name}" for entrant in order]
    for entrant, _ in zip(order, session.steps(labels)):
        with Watch(entrant.server.metrics_url) as watch:
            tenant = f"{repetition} {entrant.name} {load}"  # finds nothing of the others' in any cache
            done = entrant.asks.offer(asks(len(times), session.wanted.seed * 1000 + repetition), times, tenant)
        measured.runs[load][entrant.name].append(done)
        measured.depths[load].setdefault(entrant.name, watch.depths())


def _over_best(values: Mapping[str, Sequence[float]], best: str) -> float:
    """covey over the best static choice, where more is better: picked on other repetitions than it is compared on, or
    `best` where there is only one."""
    found = best_over({COVEY: values[COVEY]}, {name: values[name] for name in STATIC if name in values})
    return found.ratio if found is not None else values[COVEY][0] / values[best][0]


def _latency(run: Run) -> float:
    return mean(answer.seconds for answer in run.answers)


def _figures(runs: Sequence[Run]) -> Mapping[str, float]:
    latencies = [[answer.seconds for answer in run.answers] for run in runs]
    return {
        "throughput": median(run.rate for run in runs),
        "latency": median(_latency(run) for run in runs),
        "latency_p99": median(percentile(each, 0.99) or 0.0 for each in latencies),
    }


def show(result: JsonDict, console: Console, picture: Path) -> None:
    """A table for each load, and depths over time as a picture."""
    panels = []
    for load in (TWO_PEAKS, AZURE):
        found = result[load]
        if found is None:
            console.print(f"{load}: not measured" + ("; name the trace with --data" if load == AZURE else ""))
            continue
        rows = [
            [
                name,
                report.number(figures["throughput"], 0),
                report.number(figures["latency"], 2),
                report.number(figures["latency_p99"], 2),
            ]
            for name, figures in found["policies"].items()
        ]
        rows.append(
            [
                "covey over best static",
                report.number(found["throughput_covey_over_best_static"], 3),
                report.number(found["latency_best_static_over_covey"], 3),
                "",
            ]
        )
        console.print(report.table(load, ["", "tokens/s", "mean latency, s", "p99, s"], rows))
        lines = {
            name: [(at, depth) for at, depth in found["depth_over_time"][name]]
            for name in (COVEY, NIGHTJAR)
            if name in found["depth_over_time"]
        }
        panels.append(report.Panel(load.replace("_", " "), "time, s", "drafted tokens a row", lines))
    if panels:
        report.panels(picture, "Depths chosen over time", panels)
