"""Memory that breathes, on and off: a load of two peaks on emulated pairs in virtual time, and on the real server.

Emulated: all runs have the same requests and start from nothing learnt. `as they are` is the pair of its profile. In
`drafts seldom right` drafters agree with a tenth of the texts, so that a length policy that learns drafts little; the
other cases vary that one by what rows cost and what drafters hold, 30 % less and more, and by the threshold. The peaks
rise as far above what can be served as Nightjar's 35 requests a second do above what `emulated-7b` serves.
`emulated-7b, 256 rows` lets as many run as vLLM does by default, so that memory binds before that limit, and is offered
Nightjar's rates (Figure 13). `closed_form` is what the cost table says of a full pool of either size: rows that fit,
over what their pass takes. **None of this is hardware.**

Bundled: the bundled target with so little KV memory that requests wait for it, and two of its drafters, whose processes
hold many times that. Callers in a closed loop: many in a peak, two before and after it. Servers with memory on and off
take turns.

`throughput_on_over_off` is of the rule `goodput`: where drafts are seldom right, and on the real server. Throughput is
output tokens a second within the peaks; at a constant rate, from the first arrival to the last token.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterator
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
from loadtest.bench.session import FULL, QUICK, Session
from loadtest.bench.statistics import percentile

FIVE, SEVEN = "emulated-7b-five", "emulated-7b"
SELDOM = 0.1  # how often drafts are right where they are of no use
OFF, THRESHOLDS, GOODPUT = ALL = "off", "thresholds", "goodput"
SWEEP = (0.02, 0.05, 0.1, 0.2, 0.3)
EMULATED, BUNDLED = "emulated", "bundled"
REQUESTS, FULL_REQUESTS, QUICK_REQUESTS = 240, 720, 16
LOW, HIGH = 0.1, 2.5  # requests a second between the peaks and in them, of what plain decoding can serve
RATES, AT_A_RATE, MANY_ROWS = (5.0, 15.0, 25.0, 35.0), 480, 256  # Nightjar's rates and prompts; vLLM's limit
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
    rate: float = 0.0  # requests a second; 0: two peaks

    def times(self, count: int, seed: int) -> loads.Times:
        """When `count` requests come, about."""
        if self.rate:
            return loads.poisson(self.rate, count, seed)
        capacity = self.pair.capacity()
        return loads.two_peaks(LOW * capacity, HIGH * capacity, self._seconds(count), seed)

    def throughput(self, served: Served, count: int) -> float:
        """Of the peaks, while more comes than can be served."""
        if self.rate:
            return served.throughput
        whole, angle = self._seconds(count), math.asin(((1 - LOW) / (HIGH - LOW)) ** 0.25)
        return served.throughput_within(
            [((turn + angle / math.pi) * whole / 2, (turn + 1 - angle / math.pi) * whole / 2) for turn in range(2)]
        )

    def closed_form(self) -> float:
        """What a pool with all drafters' bytes serves over what it serves without."""
        emulated, held = self.pair.profile.emulated, len(self.pair.drafters) * self.pair.profile.emulated.drafter_mb
        gained = (held << 20) // (emulated.kv_token_bytes * self.pair.profile.target.block_size)
        return self.pair.capacity(gained) / self.pair.capacity()

    def _seconds(self, count: int) -> float:
        return count / ((LOW + (HIGH - LOW) * 3 / 8) * self.pair.capacity())  # the mean of a sine's fourth power is 3/8


@dataclass(frozen=True)
class Run:
    """What one policy made of a case."""

    throughput: float
    served: Served
    closed_form: float


@dataclass
class Measured:
    """All runs so far: emulated by case and memory policy, bundled by memory policy."""

    emulated: dict[str, dict[str, list[Run]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    bundled: dict[str, list[Peaks]] = field(default_factory=lambda: defaultdict(list))

    def summary(self) -> JsonDict:
        """The JSON's keys; what was not measured is null."""
        cases = {name: _case(by_policy) for name, by_policy in self.emulated.items() if len(by_policy) == len(ALL)}
        seldom = cases.get(_seldom(FIVE))
        bundled = _bundled(self.bundled)
        return {
            "throughput_on_over_off": {
                EMULATED: seldom and seldom[GOODPUT]["throughput_on_over_off"],
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
    many = _with_rows(pairs[SEVEN], MANY_ROWS)
    for rate in RATES:
        yield Case(_at(rate), many, rate=rate)
    for factor in (0.7, 1.3):
        yield Case(f"{_seldom(FIVE)}, rows cost x {factor}", _with_slope(seldom, factor))
        yield Case(f"{_seldom(FIVE)}, drafters hold x {factor}", _with_bytes(seldom, factor))
    for low in SWEEP:
        yield Case(f"{_seldom(FIVE)}, low {low:g}", seldom, low=low)


def _play(job: tuple[Case, str, int, int]) -> Run:
    case, policy, seed, wanted = job
    count = AT_A_RATE if case.rate else wanted
    times = case.times(count, seed)
    elastic = Elastic(MemorySettings(policy=policy, low=case.low))
    asked = requests(case.pair, len(times), seed)
    served = play(case.pair, case.length_policy, times, asked, seed, elastic=elastic)
    return Run(case.throughput(served, count), replace(served, emitted=()), case.closed_form())


def _at(rate: float) -> str:
    return f"{SEVEN}, {MANY_ROWS} rows, {rate:g}/s"


def _seldom(name: str) -> str:
    return f"{name}, drafts seldom right"


def _changed(pair: Pair, **facts: object) -> Pair:
    made = replace(pair)
    made.__dict__.update(pair.__dict__ | facts)  # cached properties, as if they had been asked for
    return made


def _seldom_right(pair: Pair) -> Pair:
    return _changed(pair, rates={name: dict.fromkeys(rates, (SELDOM,)) for name, rates in pair.rates.items()})


def _with_rows(pair: Pair, rows: int) -> Pair:
    scheduler = replace(pair.profile.scheduler, max_running=rows)
    return _changed(pair, profile=replace(pair.profile, scheduler=scheduler))


def _with_slope(pair: Pair, factor: float) -> Pair:
    """What a pass takes beyond its cheapest one, times a factor."""
    least = min(seconds for _, _, seconds in pair.table.verify)
    verify = tuple((rows, tokens, least + factor * (time - least)) for rows, tokens, time in pair.table.verify)
    return _changed(pair, table=replace(pair.table, verify=verify))


def _with_bytes(pair: Pair, factor: float) -> Pair:
    emulated = replace(pair.profile.emulated, drafter_mb=round(factor * pair.profile.emulated.drafter_mb))
    return _changed(pair, profile=replace(pair.profile, emulated=emulated))


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
    if result["bundled"] is not None:
        console.print(f"bundled, tokens/s in the peaks, on over off: {result['bundled']['throughput_on_over_off']:.3f}")
        console.print(f"pauses, p99 ms: {result['pause_ms_p99']}; move over memcpy: {result['move_over_memcpy']:.2f}")
    sweep = {policy: list(_sweep(result["emulated_cases"], policy)) for policy in (THRESHOLDS, GOODPUT)}
    rates = {policy: list(_rates(result["emulated_cases"], policy)) for policy in (THRESHOLDS, GOODPUT)}
    gain = "throughput, on over off"
    if all(sweep.values()) and all(rates.values()):
        panels = [
            report.Panel(f"threshold: {_seldom(FIVE)}", "share of blocks", gain, sweep),
            report.Panel(f"rate: {SEVEN}, {MANY_ROWS} rows", "requests a second", gain, rates),
        ]
        report.panels(picture, "Emulated: memory that breathes", panels)


def _sweep(found: JsonDict, policy: str) -> Iterator[tuple[float, float]]:
    for low in SWEEP:
        if f"{_seldom(FIVE)}, low {low:g}" in found:
            yield low, found[f"{_seldom(FIVE)}, low {low:g}"][policy]["throughput_on_over_off"]


def _rates(found: JsonDict, policy: str) -> Iterator[tuple[float, float]]:
    for rate in RATES:
        if _at(rate) in found:
            yield rate, found[_at(rate)][policy]["throughput_on_over_off"]
