"""Memory that breathes, on and off: a load of two peaks on emulated pairs in virtual time, and on the real server.

Emulated: all runs have the same requests and start from nothing learnt. `as they are` is the pair of its profile. In
`drafts seldom right` drafters agree with a tenth of the texts, so that a length policy that learns drafts little; the
other cases vary that one by what rows cost and what drafters hold, 30 % less and more, and by the threshold. **None of
this is hardware.**

Bundled: the bundled target with so little KV memory that requests wait for it, and two of its drafters, whose processes
hold many times that. Callers in a closed loop: many in a peak, two before and after it. Servers with memory on and off
take turns.

`throughput_on_over_off` is of the rule `thresholds` where drafts are seldom right, and of `goodput` on the real server.
Throughput is output tokens a second: of the emulated runs over the whole load, of the bundled ones within the peaks.
"""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from rich.console import Console

from covey.profile import MemorySettings
from covey.types import JsonDict
from loadtest.bench import elastic_bundled, loads, report
from loadtest.bench.elastic_bundled import Peaks
from loadtest.bench.elastic_memory import Elastic
from loadtest.bench.emulated_pairs import PAIRS, Pair, requests
from loadtest.bench.emulated_serving import Served, play
from loadtest.bench.loads import TWO_PEAKS
from loadtest.bench.session import FULL, QUICK, Session
from loadtest.bench.statistics import percentile

FIVE, SEVEN = "emulated-7b-five", "emulated-7b"
SELDOM = 0.1  # how often drafts are right where they are of no use
OFF, THRESHOLDS, GOODPUT = ALL = "off", "thresholds", "goodput"
SWEEP = (0.02, 0.05, 0.1, 0.2, 0.3)
EMULATED, BUNDLED = "emulated", "bundled"
REQUESTS, FULL_REQUESTS, QUICK_REQUESTS = 240, 720, 16
REPETITIONS, FULL_REPETITIONS = 2, 5
# What Nightjar prints for its 7B pair at 35 requests a second (Figure 13), and for its 30B pair (Table 6).
PRINTED = {
    "tokens_per_second": {"off": [5982.6, 5768.0], "on": [6315.9, 6110.0]},
    "milliseconds": {"expand": 143.9, "contract": 11.9, "reload_dispatch": 0.0219},
}


@dataclass(frozen=True)
class Case:
    """An emulated pair, and when its drafters leave."""

    name: str
    pair: Pair
    length_policy: str = "covey"
    low: float = 0.1


@dataclass
class Measured:
    """All runs so far: emulated by case and memory policy, bundled by memory policy."""

    emulated: dict[str, dict[str, list[Served]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    bundled: dict[str, list[Peaks]] = field(default_factory=lambda: defaultdict(list))

    def summary(self) -> JsonDict:
        """The JSON's keys; what was not measured is null."""
        cases = {name: _case(by_policy) for name, by_policy in self.emulated.items() if len(by_policy) == len(ALL)}
        seldom = cases.get(_seldom(FIVE))
        bundled = _bundled(self.bundled)
        return {
            "throughput_on_over_off": {
                EMULATED: seldom and seldom[THRESHOLDS]["throughput_on_over_off"],
                BUNDLED: bundled and bundled["throughput_on_over_off"],
            },
            "pause_ms_p99": bundled and bundled["pause_ms_p99"],
            "move_over_memcpy": elastic_bundled.move_over_memcpy() if self.bundled else None,
            "emulated_cases": cases,
            "bundled": bundled,
            "nightjar_printed": PRINTED,
        }


def run(session: Session) -> None:
    """Measure; results go into the session as they come."""
    measured = Measured()
    session.summarise = measured.summary
    parts = session.wanted.parts or (EMULATED, BUNDLED)
    if EMULATED in parts:
        _run_emulated(session, measured)
    if BUNDLED in parts:
        quick = session.wanted.size == QUICK
        repetitions = session.repetitions(1, FULL_REPETITIONS)
        with tempfile.TemporaryDirectory() as folder:
            for label in session.steps([OFF, GOODPUT] * repetitions):
                measured.bundled[label].append(elastic_bundled.play(session, Path(folder), label, quick=quick))


def _run_emulated(session: Session, measured: Measured) -> None:
    size = session.wanted.size
    count = {QUICK: QUICK_REQUESTS, FULL: FULL_REQUESTS}.get(size, REQUESTS)
    jobs = [
        (case, policy, session.wanted.seed * 100 + repetition, count)
        for repetition in range(session.repetitions(REPETITIONS, FULL_REPETITIONS))
        for case in cases(size)
        for policy in ALL
    ]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        labels = [f"{len(jobs)} runs in virtual time"] * len(jobs)
        calls = [pool.submit(_play, job) for job in jobs]
        try:
            for (case, policy, _, _), call, _ in zip(jobs, calls, session.steps(labels)):
                measured.emulated[case.name][policy].append(call.result())
                if session.out_of_time():
                    session.interrupted = True
                    break
        finally:
            pool.shutdown(cancel_futures=True)


def cases(size: str) -> Iterator[Case]:
    """What is emulated."""
    pairs = {pair.name: pair for pair in PAIRS}
    seldom = _seldom_right(pairs[FIVE])
    yield Case(_seldom(FIVE), seldom)
    if size == QUICK:
        return
    for name in (FIVE, SEVEN):
        yield Case(f"{name}, as they are", pairs[name])
        yield Case(f"{name}, as they are, nightjar", pairs[name], "nightjar")
    yield Case(_seldom(SEVEN), _seldom_right(pairs[SEVEN]))
    for factor in (0.7, 1.3):
        yield Case(f"{_seldom(FIVE)}, rows cost x {factor}", _with_slope(seldom, factor))
        yield Case(f"{_seldom(FIVE)}, drafters hold x {factor}", _with_bytes(seldom, factor))
    for low in SWEEP:
        yield Case(f"{_seldom(FIVE)}, low {low:g}", seldom, low=low)


def _play(job: tuple[Case, str, int, int]) -> Served:
    case, policy, seed, count = job
    capacity = case.pair.capacity()
    seconds = count / (loads.TWO_PEAKS_MEAN * capacity)
    times = loads.around(capacity, seconds, None, seed)[TWO_PEAKS]
    elastic = Elastic(MemorySettings(policy=policy, low=case.low))
    asked = requests(case.pair, len(times), seed)
    return play(case.pair, case.length_policy, times, asked, seed, elastic=elastic)


def _seldom(name: str) -> str:
    return f"{name}, drafts seldom right"


def _changed(pair: Pair, **facts: object) -> Pair:
    made = replace(pair)
    made.__dict__.update(facts)  # cached properties, as if they had been asked for
    return made


def _seldom_right(pair: Pair) -> Pair:
    return _changed(pair, rates={name: dict.fromkeys(rates, (SELDOM,)) for name, rates in pair.rates.items()})


def _with_slope(pair: Pair, factor: float) -> Pair:
    """What a pass takes beyond its cheapest one, times a factor."""
    least = min(seconds for _, _, seconds in pair.table.verify)
    verify = tuple((rows, tokens, least + factor * (time - least)) for rows, tokens, time in pair.table.verify)
    return _changed(pair, rates=pair.rates, table=replace(pair.table, verify=verify))


def _with_bytes(pair: Pair, factor: float) -> Pair:
    emulated = replace(pair.profile.emulated, drafter_mb=round(factor * pair.profile.emulated.drafter_mb))
    return _changed(pair, rates=pair.rates, profile=replace(pair.profile, emulated=emulated))


def _case(by_policy: dict[str, list[Served]]) -> JsonDict:
    off = by_policy[OFF]
    found: JsonDict = {}
    for policy, runs in by_policy.items():
        whole = min(len(off), len(runs))
        pairs = list(zip(runs[:whole], off[:whole]))
        operations = [run.memory["operations"] for run in runs]
        found[policy] = {
            "throughput": median(run.throughput for run in runs),
            "latency_p99": median(run.latency_p99 for run in runs),
            "preemptions": median(run.preemptions for run in runs),
            "blocks_gained": max(run.memory["most_gained"] for run in runs),
            "transitions": sum(each.get("unload done", 0) + each.get("load done", 0) for each in operations),
            "depth": median(run.depth for run in runs),
        }
        if pairs:
            found[policy]["throughput_on_over_off"] = median(on.throughput / un.throughput for on, un in pairs)
    return found


def _bundled(by_policy: dict[str, list[Peaks]]) -> JsonDict | None:
    if len(by_policy) < 2:
        return None
    on, off = by_policy[GOODPUT], by_policy[OFF]
    pauses: dict[str, list[float]] = defaultdict(list)
    for run_ in on:
        for operation, seconds in run_.pauses.items():
            pauses[operation] += seconds
    return {
        "throughput_on_over_off": median(one.throughput / other.throughput for one, other in zip(on, off)),
        "pause_ms_p99": {name: 1000 * (percentile(each, 0.99) or 0.0) for name, each in pauses.items()},
        "runs": {policy: [run_.as_json() for run_ in runs] for policy, runs in by_policy.items()},
    }


def show(result: JsonDict, console: Console, picture: Path) -> None:
    """Tables, and the sweep of the threshold as a picture."""
    rows = [
        [
            name,
            *(report.number(case[policy].get("throughput_on_over_off"), 3) for policy in (THRESHOLDS, GOODPUT)),
            report.number(case[OFF]["throughput"], 0),
            *(str(case[GOODPUT][key]) for key in ("blocks_gained", "transitions")),
            report.number(case[OFF]["depth"]),
        ]
        for name, case in result["emulated_cases"].items()
    ]
    heads = ["emulated, on over off", THRESHOLDS, GOODPUT, "tokens/s off", "blocks gained", "moves", "depth off"]
    console.print(report.table("Memory that breathes", heads, rows))
    if result["bundled"] is not None:
        console.print(f"bundled, tokens/s in the peaks, on over off: {result['bundled']['throughput_on_over_off']:.3f}")
        console.print(f"pauses, p99 ms: {result['pause_ms_p99']}; move over memcpy: {result['move_over_memcpy']:.2f}")
    lines = {policy: list(_sweep(result["emulated_cases"], policy)) for policy in (THRESHOLDS, GOODPUT)}
    if all(lines.values()):
        title = f"Emulated: {_seldom(FIVE)}"
        report.panels(picture, title, [report.Panel("threshold", "share of blocks", "throughput, on over off", lines)])


def _sweep(found: JsonDict, policy: str) -> Sequence[tuple[float, float]]:
    names = {low: f"{_seldom(FIVE)}, low {low:g}" for low in SWEEP}
    return [(low, found[name][policy]["throughput_on_over_off"]) for low, name in names.items() if name in found]
