"""Measures memory that breathes, on and off: a load of two peaks on emulated pairs in virtual time.

All runs have the same requests and start from nothing learnt. `as it is` is the pair of its profile. In
`drafts seldom right` drafters agree with a tenth of the texts, so that a length policy that learns drafts little. The
peaks rise as far above what can be served as Nightjar's 35 requests a second do above what `emulated-7b` serves.
**None of this is hardware.**

`throughput_on_over_off` is where drafts are seldom right. Throughput is output tokens a second within the peaks.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from statistics import median

from rich.console import Console

from covey.contracts.profile import MemorySettings
from covey.contracts.types import JsonDict
from loadtest.bench import loads, report
from loadtest.bench.emulated_pairs import PAIRS, EmulatedPair, requests
from loadtest.bench.emulated_serving import Served, play
from loadtest.bench.session import QUICK, Session

OFF, THRESHOLDS = ALL = "off", "thresholds"
FIVE, SEVEN = "emulated-7b-five", "emulated-7b"
KEY_CASE = f"{FIVE}, drafts seldom right"
SELDOM = 0.1  # how often drafts are right where they are of no use
LOW, HIGH = 0.1, 2.5  # requests a second between the peaks and in them, of what plain decoding can serve
REQUESTS, FULL_REQUESTS, QUICK_REQUESTS = 240, 720, 16
REPETITIONS, FULL_REPETITIONS = 2, 5


@dataclass(frozen=True)
class ElasticCase:
    """Names an emulated pair and its load."""

    name: str
    pair: EmulatedPair
    length_policy: str = "covey"

    def times(self, count: int, seed: int) -> loads.Times:
        """Return when about `count` requests come."""
        capacity = self.pair.capacity()
        return loads.two_peaks(LOW * capacity, HIGH * capacity, self._seconds(count), seed)

    def throughput(self, served: Served, count: int) -> float:
        """Return the throughput in the peaks, while more comes than can be served."""
        whole, angle = self._seconds(count), math.asin(((1 - LOW) / (HIGH - LOW)) ** 0.25)
        return served.throughput_within(
            [((turn + angle / math.pi) * whole / 2, (turn + 1 - angle / math.pi) * whole / 2) for turn in range(2)]
        )

    def _seconds(self, count: int) -> float:
        return count / ((LOW + (HIGH - LOW) * 3 / 8) * self.pair.capacity())  # the mean of a sine's fourth power is 3/8


def cases(size: str) -> Iterator[ElasticCase]:
    """Yield what is emulated; the first is that of the bench's key."""
    pairs = {pair.name: pair for pair in PAIRS}
    seldom = replace(pairs[FIVE])
    seldom.__dict__["rates"] = {  # a cached property, as if it had been asked for
        name: dict.fromkeys(rates, (SELDOM,)) for name, rates in pairs[FIVE].rates.items()
    }
    yield ElasticCase(KEY_CASE, seldom)
    if size != QUICK:
        for name in (FIVE, SEVEN):
            yield ElasticCase(f"{name}, as it is", pairs[name])
            yield ElasticCase(f"{name}, as it is, nightjar", pairs[name], "nightjar")


@dataclass(frozen=True)
class ElasticRun:
    """Holds what one policy made of a case."""

    throughput: float
    served: Served


@dataclass
class ElasticRuns:
    """Holds all runs so far, by case and memory policy."""

    runs: dict[str, dict[str, list[ElasticRun]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))

    def summary(self) -> JsonDict:
        """Return the JSON's keys; what was not measured is null."""
        found = {name: _case(by_policy) for name, by_policy in self.runs.items() if len(by_policy) == len(ALL)}
        key = found.get(KEY_CASE)
        return {"throughput_on_over_off": key and key[THRESHOLDS]["throughput_on_over_off"], "cases": found}


def run(session: Session) -> None:
    """Measure; results go into the session as they come."""
    measured, wanted = ElasticRuns(), session.wanted
    session.summarise = measured.summary
    count = wanted.sized(REQUESTS, FULL_REQUESTS, QUICK_REQUESTS)
    jobs = [
        ((case.name, policy), _play, (case, policy, wanted.seed * 100 + repetition, count))
        for repetition in range(session.repetitions(REPETITIONS, FULL_REPETITIONS))
        for case in cases(wanted.size)
        for policy in ALL
    ]
    for (name, policy), played in session.side_by_side(jobs):
        measured.runs[name][policy].append(played)


def _play(case: ElasticCase, policy: str, seed: int, count: int) -> ElasticRun:
    times = case.times(count, seed)
    asked = requests(case.pair, len(times), seed)
    served = play(case.pair, case.length_policy, times, asked, seed, elastic=MemorySettings(policy=policy))
    return ElasticRun(case.throughput(served, count), replace(served, emitted=()))


def _case(by_policy: dict[str, list[ElasticRun]]) -> JsonDict:
    off = by_policy[OFF]
    found: JsonDict = {}
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


def show(result: JsonDict, console: Console) -> None:
    rows = [
        [
            name,
            report.number(case[THRESHOLDS]["throughput_on_over_off"], 3),
            report.number(case[OFF]["throughput"], 0),
            *(str(case[THRESHOLDS][key]) for key in ("blocks_gained", "transitions")),
            report.number(case[OFF]["depth"]),
        ]
        for name, case in result["cases"].items()
    ]
    heads = ("emulated", "on over off", "tokens/s off", "gained", "moves", "depth off")
    console.print(report.table("Memory that breathes", heads, rows))
