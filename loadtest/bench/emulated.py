"""Measures every policy on emulated pairs, in virtual time: Poisson arrivals from 2 to 35 a second, two peaks, and a
trace.

Nothing here is hardware: devices sleep by the cost tables of `profiles/costs/` on a clock that jumps, and a hash stands
in for the model. Engine, scheduler, planner and policies are the real ones. All policies get the same requests and
start from nothing learnt. Throughput is tokens over the time from the first arrival to the last token; latency is from
arrival to last token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import geometric_mean, median

from rich.console import Console
from rich.table import Table

from covey.contracts import registry
from covey.contracts.errors import SettingError
from covey.contracts.types import JsonDict
from loadtest.arrivals import Arrival, read_azure
from loadtest.bench import loads, report
from loadtest.bench.emulated_pairs import PAIRS, EmulatedPair, requests
from loadtest.bench.emulated_serving import Served, play
from loadtest.bench.loads import AZURE, TWO_PEAKS, Times
from loadtest.bench.session import Session, Wanted

OFF, ADAPTIVE = "off", "adaptive"
FIXED = tuple(f"fixed:{depth}" for depth in range(1, 6))
STATIC = (OFF, *FIXED)
LEARNERS = tuple(name for name in registry.POLICIES if name not in (OFF, "fixed:k", "table"))
POLICIES = (*STATIC, "table", *LEARNERS)
QUICK_POLICIES = (OFF, "fixed:3", "nightjar", ADAPTIVE)
RATES: tuple[float, ...] = (2.0, 8.0, 15.0, 25.0, 35.0)
QUICK_RATES = (15.0,)
REQUESTS, QUICK_REQUESTS = 160, 12
FIGURES = ("throughput", "latency", "latency_p99", "depth")  # of a run, in the JSON
TRACE_REQUESTS = 240


@dataclass
class EmulatedRuns:
    """Holds all runs so far: pair -> load -> policy -> one run per repetition."""

    policies: Sequence[str] = POLICIES
    runs: dict[str, dict[str, dict[str, list[Served]]]] = field(default_factory=dict)

    def add(self, pair: str, load: str, policy: str, served: Served) -> None:
        self.runs.setdefault(pair, {}).setdefault(load, {}).setdefault(policy, []).append(served)

    def whole(self, pair: str) -> dict[str, dict[str, list[Served]]]:
        """Return the loads that every policy has served equally often."""
        return {
            load: by_policy
            for load, by_policy in self.runs.get(pair, {}).items()
            if len({len(by_policy.get(policy, ())) for policy in self.policies}) == 1
        }

    def summary(self) -> JsonDict:
        """Return the JSON's keys."""
        return {"emulated": True, "pairs": {pair: self._pair(pair) for pair in self.runs if self.whole(pair)}}

    def _pair(self, pair: str) -> JsonDict:
        loads_ = self.whole(pair)
        others = [policy for policy in self.policies if policy != ADAPTIVE]
        return {
            "adaptive_over": {
                policy: _span([_ratio(by, ADAPTIVE, policy) for by in loads_.values()]) for policy in others
            },
            "latency_over_covey": {
                policy: _span([_ratio(by, policy, ADAPTIVE, "latency") for by in loads_.values()]) for policy in others
            },
            "adaptive_over_best_static": _span([_ratio(by, ADAPTIVE, _best_static(by)) for by in loads_.values()]),
            "loads": {load: {policy: _middle(by[policy]) for policy in self.policies} for load, by in loads_.items()},
        }


def run(session: Session) -> None:
    """Measure; results go into the session as they come."""
    wanted = session.wanted
    policies = QUICK_POLICIES if wanted.quick else POLICIES
    measured = EmulatedRuns(policies)
    session.summarise = measured.summary
    chosen = _chosen(wanted.pairs)
    repetitions = session.repetitions(1)
    trace = read_azure(wanted.data) if wanted.data else None
    session.notes |= {
        "clock": "virtual",
        "repetitions": repetitions,
        "capacity_without_speculation": {pair.name: pair.capacity() for pair in chosen},
    }
    jobs = [
        ((pair.name, load, policy), play, (pair, policy, times, requests(pair, len(times), seed), seed))
        for pair in chosen
        for seed in range(wanted.seed * 100, wanted.seed * 100 + repetitions)
        for load, times in _loads(pair, wanted, trace, seed).items()
        for policy in policies
    ]
    for key, served in session.side_by_side(jobs):
        measured.add(*key, served)


def _loads(pair: EmulatedPair, wanted: Wanted, trace: Sequence[Arrival] | None, seed: int) -> dict[str, Times]:
    count = wanted.sized(REQUESTS, QUICK_REQUESTS)
    rates = wanted.sized(RATES, QUICK_RATES)
    made = {f"{rate:g}": loads.poisson(rate, count, seed) for rate in rates}
    served = wanted.sized(TRACE_REQUESTS, QUICK_REQUESTS)
    capacity = pair.capacity()
    return made | loads.around(capacity, served / (loads.MEAN * capacity), trace, seed)


def _chosen(names: Sequence[str]) -> list[EmulatedPair]:
    known = {pair.name: pair for pair in PAIRS}
    for name in names:
        if name not in known:
            raise SettingError(f"--pair: got {name!r}, allowed: {', '.join(known)}")
    return [known[name] for name in names] or list(PAIRS)


def _ratio(by_policy: dict[str, list[Served]], above: str, below: str, of: str = "throughput") -> float:
    """Return the ratio of throughputs or of mean latencies: the median over repetitions, each with its own requests."""
    return median(getattr(one, of) / getattr(other, of) for one, other in zip(by_policy[above], by_policy[below]))


def _span(ratios: Sequence[float]) -> JsonDict:
    return {"mean": geometric_mean(ratios), "least": min(ratios), "most": max(ratios)}


def _best_static(by_policy: dict[str, list[Served]]) -> str:
    """Return the best of `off` and `fixed:k` by throughput."""
    static = [policy for policy in STATIC if policy in by_policy]
    return max(static, key=lambda policy: median(served.throughput for served in by_policy[policy]))


def _middle(runs: Sequence[Served]) -> JsonDict:
    return {key: median(getattr(served, key) for served in runs) for key in FIGURES}


def show(result: JsonDict, console: Console) -> None:
    for name, pair in result["pairs"].items():
        console.print(_table(name, pair))
        console.print(
            f"throughput, covey over best static: {report.number(pair['adaptive_over_best_static']['mean'], 3)}"
        )


def _table(title: str, pair: JsonDict) -> Table:
    """Return a table of throughputs, and of covey's mean and smallest gain over each policy."""
    loads_: JsonDict = pair["loads"]
    rows = []
    for policy in next(iter(loads_.values())):
        gains = [pair[key].get(policy) for key in ("adaptive_over", "latency_over_covey")]
        rates = [report.number(load[policy]["throughput"], 0) for load in loads_.values()]
        rows.append([policy, *rates, *(f"{gain['mean']:.2f} {gain['least']:.2f}" if gain else "" for gain in gains)])
    heads = [load.removeprefix("two_") if load in (AZURE, TWO_PEAKS) else f"{load}/s" for load in loads_]
    return report.table(title, ["tokens/s", *heads, "gain", "in time"], rows)
