"""Memory that breathes, on and off: a load of two peaks on emulated pairs in virtual time, and on the real server.

Emulated: all runs have the same requests and start from nothing learnt. `as they are` is the pair of its profile. In
`drafts seldom right` drafters agree with a tenth of the texts, so that a length policy that learns drafts little; the
other cases vary that one by its load, by what rows cost and what drafters hold, 30 % less and more, and by the
threshold. The peaks rise as far above what can be served as Nightjar's 35 requests a second do above what
`emulated-7b` serves. `256 rows` lets as many of `emulated-7b` run as vLLM does by default, so that memory binds before
that limit, and is offered Nightjar's rates (Figure 13); `refitted` has passes as fast as Nightjar's throughput says.
`closed_form` is what the cost table says of a full pool of either size: rows that fit, over what their pass takes.
**None of this is hardware.** `--part key` is the first case alone.

Bundled: the bundled target with so little KV memory that requests wait for it, and two of its drafters, whose processes
hold many times that; a third server counts the drafters' weights and KV memory alone. Callers in a closed loop: many in
a peak, two before and after it. The servers take turns. `--pair FOLDER` has the same of a pair that `python -m
covey.training aligned` wrote there, in place of the bundled models.

`throughput_on_over_off` is of the rule `goodput`: where drafts are seldom right, and on the real server. Throughput is
output tokens a second within the peaks; at a constant rate, from the first arrival to the last token.
"""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from rich.console import Console

from covey.profile import MemorySettings
from covey.types import JsonDict
from loadtest.bench import elastic_bundled, report
from loadtest.bench.elastic_bundled import Arm, Models, Peaks
from loadtest.bench.elastic_cases import (
    AT_A_RATE,
    LOWEST,
    MANY_ROWS,
    PRINTED,
    RATES,
    SEVEN,
    SWEEP,
    Case,
    at_low,
    at_rate,
    cases,
)
from loadtest.bench.elastic_memory import Elastic
from loadtest.bench.emulated_pairs import requests
from loadtest.bench.emulated_serving import Served, play
from loadtest.bench.session import FULL, QUICK, Session
from loadtest.bench.statistics import percentile

OFF, THRESHOLDS, GOODPUT = ALL = "off", "thresholds", "goodput"
EMULATED, KEY, BUNDLED = "emulated", "key", "bundled"
ALIGNED = "aligned"
KEY_CASE = at_low(LOWEST)
ON_WEIGHTS = "goodput, weights and KV alone"
ARMS = (Arm(OFF, OFF), Arm(GOODPUT, GOODPUT), Arm(ON_WEIGHTS, GOODPUT, "weights"))
REQUESTS, FULL_REQUESTS, QUICK_REQUESTS = 240, 720, 16
REPETITIONS, FULL_REPETITIONS = 2, 5
# What Nightjar prints for its 7B pair at 35 requests a second (Figure 13), and for its 30B pair (Table 6).
NIGHTJAR = {
    "tokens_per_second": {"off": [PRINTED, 5768.0], "on": [6315.9, 6110.0]},
    "milliseconds": {"expand": 143.9, "contract": 11.9, "reload_dispatch": 0.0219},
}


@dataclass(frozen=True)
class Run:
    """What one policy made of a case."""

    throughput: float
    served: Served
    closed_form: float


@dataclass
class Measured:
    """All runs so far: emulated by case and memory policy, on servers by their models and by arm."""

    emulated: dict[str, dict[str, list[Run]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    servers: dict[str, dict[str, list[Peaks]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))

    def summary(self) -> JsonDict:
        """The JSON's keys; what was not measured is null."""
        found = {name: _case(by_policy) for name, by_policy in self.emulated.items() if len(by_policy) == len(ALL)}
        key = found.get(KEY_CASE)
        servers = {models: _served(by_arm) for models, by_arm in self.servers.items() if len(by_arm) == len(ARMS)}
        return {
            "throughput_on_over_off": {
                EMULATED: key and key[GOODPUT]["throughput_on_over_off"],
                **{
                    f"{models}{suffix}": servers[models][arm]["throughput_on_over_off"] if models in servers else None
                    for models in (BUNDLED, ALIGNED)
                    for arm, suffix in ((GOODPUT, ""), (ON_WEIGHTS, "_weights_and_kv"))
                },
            },
            "pause_ms_p99": servers[BUNDLED][GOODPUT]["pause_ms_p99"] if BUNDLED in servers else None,
            "move_over_memcpy": elastic_bundled.move_over_memcpy() if servers else None,
            "emulated_cases": found,
            "servers": servers,
            "nightjar_printed": NIGHTJAR,
        }


def run(session: Session) -> None:
    """Measure; results go into the session as they come."""
    measured = Measured()
    session.summarise = measured.summary
    parts = session.wanted.parts or (EMULATED, BUNDLED)
    if EMULATED in parts or KEY in parts:
        _run_emulated(session, measured, list(cases(session.wanted.size if EMULATED in parts else QUICK)))
    if BUNDLED in parts:
        if session.wanted.pairs:
            _run_servers(session, measured, ALIGNED, elastic_bundled.aligned(Path(session.wanted.pairs[0])))
        else:
            _run_servers(session, measured, BUNDLED, elastic_bundled.BUNDLED)


def _run_servers(session: Session, measured: Measured, name: str, models: Models) -> None:
    quick = session.wanted.size == QUICK
    turns = list(ARMS) * session.repetitions(1, FULL_REPETITIONS)
    with tempfile.TemporaryDirectory() as folder:
        for arm, _ in zip(turns, session.steps([arm.name for arm in turns])):
            played = elastic_bundled.play(session, Path(folder), models, arm, quick=quick)
            measured.servers[name][arm.name].append(played)


def _run_emulated(session: Session, measured: Measured, chosen: Sequence[Case]) -> None:
    count = {QUICK: QUICK_REQUESTS, FULL: FULL_REQUESTS}.get(session.wanted.size, REQUESTS)
    jobs = [
        (case, policy, session.wanted.seed * 100 + repetition, count)
        for repetition in range(session.repetitions(REPETITIONS, FULL_REPETITIONS))
        for case in chosen
        for policy in ALL
    ]
    calls: dict[tuple[object, ...], Future[Run]] = {}
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for job in jobs:
            if _same(job) not in calls:
                calls[_same(job)] = pool.submit(_play, job)
        try:
            for job, _ in zip(jobs, session.steps([f"{len(calls)} runs in virtual time"] * len(jobs))):
                measured.emulated[job[0].name][job[1]].append(calls[_same(job)].result())
                if session.out_of_time():
                    session.interrupted = True
                    break
        finally:
            pool.shutdown(cancel_futures=True)


def _same(job: tuple[Case, str, int, int]) -> tuple[object, ...]:
    """Alike for jobs that come to the same: where nobody leaves the threshold says nothing."""
    case, policy, seed, _ = job
    return id(case.pair), case.length_policy, case.rate, case.low if policy != OFF else None, policy, seed


def _play(job: tuple[Case, str, int, int]) -> Run:
    case, policy, seed, wanted = job
    count = AT_A_RATE if case.rate else wanted
    times = case.times(count, seed)
    elastic = Elastic(MemorySettings(policy=policy, low=case.low))
    asked = requests(case.pair, len(times), seed)
    served = play(case.pair, case.length_policy, times, asked, seed, elastic=elastic)
    return Run(case.throughput(served, count), replace(served, emitted=()), case.closed_form())


def _case(by_policy: dict[str, list[Run]]) -> JsonDict:
    off = by_policy[OFF]
    found: JsonDict = {"closed_form": off[0].closed_form}
    for policy, runs in by_policy.items():
        operations = [run.served.memory["operations"] for run in runs]
        ratios = [one.throughput / other.throughput for one, other in zip(runs, off)]  # of the same requests
        found[policy] = {
            "throughput": median(run.throughput for run in runs),
            "latency_p99": median(run.served.latency_p99 for run in runs),
            "preemptions": median(run.served.preemptions for run in runs),
            "blocks_gained": max(run.served.memory["most_gained"] for run in runs),
            "transitions": sum(each.get("unload done", 0) + each.get("load done", 0) for each in operations),
            "depth": median(run.served.depth for run in runs),
            "throughput_on_over_off": median(ratios),
            "ratios": ratios,
        }
    return found


def _served(by_arm: dict[str, list[Peaks]]) -> JsonDict:
    off = by_arm[OFF]
    found: JsonDict = {}
    for arm, runs in by_arm.items():
        pauses: dict[str, list[float]] = defaultdict(list)
        for run_ in runs:
            for operation, seconds in run_.pauses.items():
                pauses[operation] += seconds
        found[arm] = {
            "throughput_on_over_off": median(one.throughput / other.throughput for one, other in zip(runs, off)),
            "pause_ms_p99": {name: 1000 * (percentile(each, 0.99) or 0.0) for name, each in pauses.items()},
            "runs": [run_.as_json() for run_ in runs],
        }
    return found


def show(result: JsonDict, console: Console, picture: Path) -> None:
    """Tables, and the sweep of the threshold as a picture."""
    rows = [
        [
            name,
            *(report.number(case[policy]["throughput_on_over_off"], 3) for policy in (THRESHOLDS, GOODPUT)),
            report.number(case["closed_form"], 3),
            report.number(case[OFF]["throughput"], 0),
            *(str(case[GOODPUT][key]) for key in ("blocks_gained", "transitions")),
            report.number(case[OFF]["depth"]),
        ]
        for name, case in result["emulated_cases"].items()
    ]
    heads = [
        "emulated, on over off",
        THRESHOLDS,
        GOODPUT,
        "closed form",
        "tokens/s off",
        "blocks gained",
        "moves",
        "depth off",
    ]
    console.print(report.table("Memory that breathes", heads, rows))
    for models, by_arm in result["servers"].items():
        rows = [
            [
                arm,
                report.number(found["throughput_on_over_off"], 3),
                *(report.number(median(run_[key] for run_ in found["runs"]), 1) for key in elastic_bundled.SHOWN),
                ", ".join(f"{name} {value:.3g}" for name, value in found["pause_ms_p99"].items()),
            ]
            for arm, found in by_arm.items()
        ]
        heads = [f"{models}, in the peaks", "on over off", *elastic_bundled.SHOWN, "pauses, p99 ms"]
        console.print(report.table("Memory that breathes, real servers", heads, rows))
        console.print(f"move over memcpy: {result['move_over_memcpy']:.2f}")
    curves = {
        (f"threshold: {KEY_CASE}", "share of blocks"): [(low, at_low(low)) for low in SWEEP],
        (f"rate: {SEVEN}, {MANY_ROWS} rows", "requests a second"): [
            (rate, at_rate(rate, fitted=False)) for rate in RATES
        ],
        (f"rate: {SEVEN} refitted", "requests a second"): [(rate, at_rate(rate, fitted=True)) for rate in RATES],
    }
    panels = [
        report.Panel(*axis, "throughput, on over off", _curves(result["emulated_cases"], points))
        for axis, points in curves.items()
    ]
    if all(curve for panel in panels for curve in panel.lines.values()):
        report.panels(picture, "Emulated: memory that breathes", panels)


def _curves(found: JsonDict, points: Sequence[tuple[float, str]]) -> dict[str, list[tuple[float, float]]]:
    """By policy."""
    return {
        policy: [(at, found[name][policy]["throughput_on_over_off"]) for at, name in points if name in found]
        for policy in (THRESHOLDS, GOODPUT)
    }
