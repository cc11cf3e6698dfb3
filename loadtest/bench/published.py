"""Sets what Nightjar (v2) printed beside the same methods on emulated pairs in virtual time: 480 requests, lengths by
dataset, five seeds.

Nothing was fitted to these tables but what the notes in `profiles/costs/` say; Figure 2, to which nothing was, is the
test of that. The paper's text gives neither the rates behind Tables 4 and 5, which come from a segment of Azure's
trace, nor the figures' values. So ratios over decoding without speculation are compared, on the same requests, and not
tokens a second. Without that trace (`--data`) two peaks stand in for it.

gain   total throughput, prompts and output, over that of `off`
sooner mean latency of `off` over the method's
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, geometric_mean
from typing import NamedTuple

from rich.console import Console

from covey.contracts.types import JsonDict
from loadtest.arrivals import Arrival
from loadtest.bench import loads, report
from loadtest.bench.emulated_pairs import DATASETS, PAIRS, SHAREGPT, SPECBENCH, Dataset, requests
from loadtest.bench.emulated_serving import Served, play
from loadtest.bench.session import QUICK, Session
from loadtest.bench.statistics import interval, ratios

OFF, TRACE = "off", "trace"
SEVEN, THIRTEEN = "emulated-7b", "emulated-13b-40g"
METHODS = (OFF, "fixed:3", "nightjar", "banditspec", "dsd", "tetris", "covey")
REQUESTS, QUICK_REQUESTS, SEEDS, FULL_SEEDS = 480, 12, 5, 10


class Cell(NamedTuple):
    """Names one policy under one load."""

    pair: str
    dataset: str
    load: str
    policy: str


class Experiment(NamedTuple):
    """Describes a table or figure of the paper."""

    pair: str
    datasets: Sequence[Dataset]
    loads: Sequence[str]  # requests a second, or the trace
    policies: Sequence[str]

    def cells(self) -> list[Cell]:
        kinds = itertools.product(self.datasets, self.loads, self.policies)
        return [Cell(self.pair, dataset.name, load, policy) for dataset, load, policy in kinds]


EXPERIMENTS = {
    "figure 2": Experiment(SEVEN, (SHAREGPT,), ("15", "25", "35"), (OFF, "fixed:2", "fixed:3")),
    "tables 4 and 5, 7B": Experiment(SEVEN, DATASETS, (TRACE,), METHODS),
    "tables 4 and 5, 13B": Experiment(THIRTEEN, DATASETS, (TRACE,), METHODS),
    "figure 9": Experiment(SEVEN, (SHAREGPT,), ("4", "20"), (OFF, "fixed:3", "nightjar", "dsd", "covey")),
    "figure 12": Experiment(SEVEN, DATASETS, ("10",), (OFF, "nightjar", "linucb", "lints", "ada-bingreedy", "covey")),
    "figure 15": Experiment(
        THIRTEEN, (SPECBENCH,), ("4", "10"), (OFF, *(f"fixed:{depth}" for depth in range(1, 6)), "nightjar", "covey")
    ),
}

# What Nightjar (v2) printed in Tables 4 (tokens per second) and 5 (mean latency, ms), each by dataset in the order of
# `DATASETS`. SD drafts a fixed length, 3 in their example.
PRINTED = {
    SEVEN: {
        "nightjar": ((2102.73, 3734.23, 3326.20), (8868.17, 6534.76, 7618.85)),
        "banditspec": ((1860.74, 3428.75, 2631.43), (12340.83, 7799.63, 9288.23)),
        "dsd": ((2044.40, 3614.65, 2789.51), (9183.21, 6499.12, 8301.02)),
        "tetris": ((1875.91, 3597.21, 2974.14), (11734.19, 7409.62, 8789.48)),
        "fixed:3": ((1920.63, 3593.36, 3044.80), (11110.68, 7047.49, 8567.04)),
        "off": ((2072.38, 3653.61, 3207.28), (8876.14, 6438.47, 7654.05)),
    },
    THIRTEEN: {
        "nightjar": ((721.23, 1729.68, 1061.82), (23525.49, 8133.92, 14691.81)),
        "banditspec": ((679.82, 1383.81, 763.15), (29077.32, 9667.04, 19294.42)),
        "dsd": ((603.32, 1244.96, 692.01), (16212.44, 10057.72, 22361.71)),
        "tetris": ((702.65, 1628.86, 985.40), (22133.43, 8046.25, 14937.37)),
        "fixed:3": ((628.47, 1689.53, 964.02), (24671.40, 8152.97, 14212.97)),
        "off": ((438.13, 1290.04, 673.48), (32222.49, 9350.87, 23831.74)),
    },
}


def run(session: Session) -> None:
    """Measure; results go into the session as they come, seed by seed."""
    wanted, measured = session.wanted, PublishedRuns()
    session.summarise = measured.summary
    measured.experiments = {name: EXPERIMENTS[name] for name in wanted.parts_of(EXPERIMENTS)}
    trace, seeds = loads.azure(wanted.data), session.repetitions(SEEDS, FULL_SEEDS)
    session.notes |= {"clock": "virtual", "seeds": seeds, "trace": loads.TWO_PEAKS if trace is None else loads.AZURE}
    count = QUICK_REQUESTS if wanted.size == QUICK else REQUESTS
    cells = dict.fromkeys(cell for each in measured.experiments.values() for cell in each.cells())
    jobs = [
        ((cell, seed), serve, (cell, wanted.seed * 100 + seed, trace, count)) for seed in range(seeds) for cell in cells
    ]
    for (cell, seed), served in session.side_by_side(jobs):
        measured.runs.setdefault(cell, {})[seed] = served


def serve(cell: Cell, seed: int, trace: Sequence[Arrival] | None, count: int) -> Served:
    """Run one cell."""
    dataset = next(each for each in DATASETS if each.name == cell.dataset)
    pair = replace(next(each for each in PAIRS if each.name == cell.pair), dataset=dataset)
    if cell.load == TRACE:
        capacity = pair.capacity()
        found = loads.around(capacity, count / (loads.MEAN * capacity), trace, seed)
        times = found.get(loads.AZURE) or found[loads.TWO_PEAKS]
    else:
        times = loads.poisson(float(cell.load), count, seed)
    return play(pair, cell.policy, times, requests(pair, len(times), seed), seed)


@dataclass
class PublishedRuns:
    """Holds runs by cell and seed."""

    experiments: dict[str, Experiment] = field(default_factory=dict)
    runs: dict[Cell, dict[int, Served]] = field(default_factory=dict)

    def summary(self) -> JsonDict:
        """Return the JSON's keys."""
        found: JsonDict = {name: {} for name in self.experiments}
        for name, each in self.experiments.items():
            for cell in each.cells():
                by_load = found[name].setdefault(cell.dataset, {})
                by_load.setdefault(cell.load, {})[cell.policy] = self._cell(cell)
        return {"emulated": True, "experiments": found}

    def _cell(self, cell: Cell) -> JsonDict | None:
        """Return the cell's figures; None if `off` has not yet served the same requests."""
        plain, found = self.runs.get(cell._replace(policy=OFF), {}), self.runs.get(cell, {})
        seeds = sorted(plain.keys() & found.keys())
        if not seeds:
            return None
        served, off = [found[seed] for seed in seeds], [plain[seed] for seed in seeds]
        return {
            "seeds": len(seeds),
            "output_throughput": fmean(each.throughput for each in served),
            "total_throughput": fmean(each.total_throughput for each in served),
            "latency": fmean(each.latency for each in served),
            "gain": _span(ratios([each.total_throughput for each in served], [each.total_throughput for each in off])),
            "sooner": _span(ratios([each.latency for each in off], [each.latency for each in served])),
            "printed": _printed(cell) if cell.load == TRACE else None,
        }


def _span(found: Sequence[float]) -> JsonDict:
    low, high = interval(found)
    return {"ratio": geometric_mean(found), "low": low, "high": high}


def _printed(cell: Cell) -> JsonDict | None:
    """Return Tables 4 and 5, over their own `off`."""
    printed, at = PRINTED[cell.pair], [each.name for each in DATASETS].index(cell.dataset)
    if cell.policy not in printed:
        return None
    (throughput, latency), (plain, plain_latency) = printed[cell.policy], printed[OFF]
    return {"gain": throughput[at] / plain[at], "sooner": plain_latency[at] / latency[at]}


def show(result: JsonDict, console: Console) -> None:
    heads = ["method", "output tokens/s", "total tokens/s", "latency, s", "gain", "printed", "sooner", "printed"]
    for name, datasets in result["experiments"].items():
        for dataset, by_load in datasets.items():
            for load, by_policy in by_load.items():
                rows = [_row(policy, found) for policy, found in by_policy.items() if found is not None]
                console.print(report.table(f"Emulated, {name}: {dataset}, {load}", heads, rows))


def _row(policy: str, found: JsonDict) -> list[str]:
    printed = found["printed"] or {}
    speeds = [report.number(found[key], 0) for key in ("output_throughput", "total_throughput")]
    row = [policy, *speeds, report.number(found["latency"])]
    for key in ("gain", "sooner"):
        span = found[key]
        row += [f"{span['ratio']:.2f} ({span['low']:.2f} to {span['high']:.2f})", report.number(printed.get(key))]
    return row


def panels(result: JsonDict) -> list[report.Panel]:
    found = []
    for name, datasets in result["experiments"].items():
        for dataset, by_load in datasets.items():
            places = report.turned({str(at): by_policy for at, by_policy in enumerate(by_load.values())})
            lines = {
                policy: report.line({at: of and of["gain"]["ratio"] for at, of in by_place.items()})
                for policy, by_place in places.items()
            }
            found.append(report.Panel(f"Emulated, {name}: {dataset}", "load, in the table's order", "over off", lines))
    return found
