"""What each part of the policy `covey` gains, in virtual time: it serves and is replayed with all of them, and without
each. A part that gains nothing anywhere is a part too many.

serving  The emulated pairs under Poisson arrivals and two peaks, nothing learnt before: the figure is mean latency.
first    The first half minute of some callers in a closed loop, the device's curves known: time per token.
drift    The replay of sudden changes (`bench changes`): time over the oracle's.
rough    The same on a made-up device whose passes take up to a tenth more or less than any curve says, by their shape,
         and a fifth longer after another depth: real ones do both.

Ratios are of the time without the part over the time with it, on the same requests and draws: above 1 the part helps.
Nothing here is hardware.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from covey.errors import SettingError
from covey.planner import acceptance, change_cost, costs, covey, expectations, regression, residuals
from covey.types import JsonDict
from loadtest.bench import changes as drift
from loadtest.bench import loads, report
from loadtest.bench.emulated_pairs import PAIRS, requests
from loadtest.bench.emulated_serving import play
from loadtest.bench.session import QUICK, Session

COVEY = "covey"
SERVED = ("emulated-7b", "emulated-70b-4x80g", "emulated-7b-five")
RATES, REQUESTS = (8.0, 25.0), 120
CALLERS, FIRST, WAITING = (1, 16), 30.0, 12  # in a closed loop, seconds, and requests to a caller: enough for them
BATCHES = (1, 32)
ROUGH, CHANGE = 0.1, 0.2
SEEDS, FULL_SEEDS = 4, 12
WORTH = 0.005  # a part that gains less than this everywhere is one too many

Patch = tuple[object, str, Any]


def _usual(self: Any, situation: Any, _expected: Any) -> int:
    return min(self._current, situation.ceiling)


def _at_once(self: Any, _situation: Any, _expected: Any, best: int, _restart: float) -> int:
    self._current, self._debt = best, 0.0
    return best


def _nothing_left_over(probe: Callable[..., tuple[int, float]]) -> Callable[..., tuple[int, float]]:
    def bounded(self: Any, situation: Any, expected: Any, current: int, restart: float) -> tuple[int, float]:
        bank = self._bank
        self._bank = min(bank, 0.99 * covey.FULL * expected.seconds[current])
        try:
            return probe(self, situation, expected, current, restart)
        finally:
            self._bank = bank

    return bounded


# By part: what stands in its place.
PARTS: dict[str, Sequence[Patch]] = {
    "residuals": [(residuals.Residuals, "factors", lambda self, _rows: np.ones(self._mean.shape[1]))],
    "cost of changes": [
        (change_cost.ChangeCost, "seen", lambda *_: True),
        (change_cost.ChangeCost, "dear", lambda *_: False),
        (change_cost.ChangeCost, "price", lambda *_: 0.0),
    ],
    "beside prefill": [(covey.Covey, "_beside_prefill", _usual)],
    "keeping": [(covey.Covey, "_settled", _at_once)],
    "premium": [(covey.Covey, "_probe", _nothing_left_over(covey.Covey._probe))],
    "blind": [(expectations.Expectations, "rests", lambda *_: True)],
    "doubt of what is unplayed": [(covey, "DRIFT", 0.0)],
    "stale": [(covey, "STALE", 0.0), (covey, "LEAST", 0.0)],
    "several rounds": [(covey, "ACROSS", 1), (covey, "AMONG", 1)],
    "alarm": [(acceptance._Suspicion, "weigh", lambda *_: False)],
    "fading": [(acceptance.Acceptance, "idle", lambda *_: None)],
    "haste": [(regression, "HASTE", 1.0)],
    "pause": [(costs, "PAUSE", 0.0)],
}


@contextlib.contextmanager
def without(part: str) -> Iterator[None]:
    """The policy lacks the part, in this process; "": it lacks none."""
    before = [(owner, name, owner.__dict__[name]) for owner, name, _ in PARTS.get(part, ())]
    try:
        for owner, name, other in PARTS.get(part, ()):
            setattr(owner, name, other)
        yield
    finally:
        for owner, name, own in before:
            setattr(owner, name, own)


class Case(NamedTuple):
    """What is run with and without each part."""

    kind: str  # of KINDS
    name: str  # of the pair, or of the scenario
    load: str  # requests per second, callers or rows


def run(session: Session) -> None:
    """Measure; results go into the session as they come."""
    wanted, measured = session.wanted, Measured()
    session.summarise = measured.summary
    for part in wanted.parts:
        if part not in PARTS:
            raise SettingError(f"--part: got {part!r}, allowed: {', '.join(PARTS)}")
    parts = ("", *(wanted.parts or PARTS))
    seeds = session.repetitions(SEEDS, FULL_SEEDS)
    session.notes |= {"seeds": seeds, "clock": "virtual"}
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        waiting: dict[Future[float], tuple[Case, str]] = {}
        for seed in range(seeds):
            for case in cases(wanted.size == QUICK, wanted.pairs):
                for part in parts:
                    call = pool.submit(seconds, case, part, wanted.seed * 100 + seed, wanted.size == QUICK)
                    waiting[call] = case, part
        labels = [f"{len(waiting)} runs in virtual time"] * len(waiting)
        order = {call: place for place, call in enumerate(waiting)}
        try:
            for call, _ in zip(as_completed(waiting), session.steps(labels)):
                case, part = waiting[call]
                measured.add(case, part, order[call] // len(parts), call.result())
                if session.out_of_time():
                    session.interrupted = True
                    break
        finally:
            pool.shutdown(cancel_futures=True)


def cases(quick: bool, pairs: Sequence[str]) -> list[Case]:
    served = [name for name in SERVED if not pairs or name in pairs]
    if quick:
        return [Case("serving", served[0], "25"), Case("drift", drift.DOWN_UP, "4")]
    rates = [*(f"{rate:g}" for rate in RATES), loads.TWO_PEAKS]
    replayed = [Case("drift", name, str(rows)) for name in drift.SCENARIOS for rows in BATCHES]
    replayed += [Case("rough", drift.DOWN_UP, str(rows)) for rows in BATCHES]
    return [
        *(Case("serving", name, load) for name in served for load in rates),
        *(Case("first", name, str(callers)) for name in served for callers in CALLERS),
        *([] if pairs else replayed),
    ]


def seconds(case: Case, part: str, seed: int, quick: bool) -> float:
    """What the case takes without that part."""
    with without(part):
        if case.kind in ("drift", "rough"):
            phases = drift.shorter(drift.SCENARIOS[case.name]) if quick else drift.SCENARIOS[case.name]
            device = (_rough(drift.device(), seed), CHANGE) if case.kind == "rough" else ()
            curve = drift.play(COVEY, int(case.load), phases, seed, *device).curve
            return 1.0 / fmean(efficiency for _, efficiency in curve)
        pair = next(pair for pair in PAIRS if pair.name == case.name)
        if case.kind == "first":
            asked = requests(pair, int(case.load) * WAITING, seed)
            served = play(pair, COVEY, (0.0,) * len(asked), asked, seed, callers=int(case.load), until=FIRST)
            return 1.0 / served.throughput
        count = 12 if quick else REQUESTS
        if case.load == loads.TWO_PEAKS:
            capacity = pair.capacity()
            times = loads.around(capacity, count / (loads.TWO_PEAKS_MEAN * capacity), None, seed)[loads.TWO_PEAKS]
        else:
            times = loads.poisson(float(case.load), count, seed)
        return play(pair, COVEY, times, requests(pair, len(times), seed), seed).latency


def _rough(device: drift.Costs, seed: int) -> drift.Costs:
    @functools.cache
    def verify(rows: int, tokens: int) -> float:
        return device.verify(rows, tokens) * (1.0 + random.Random(f"{seed} {rows} {tokens}").uniform(-ROUGH, ROUGH))

    return replace(device, verify=verify)


@dataclass
class Measured:
    """Seconds by case, part and repetition."""

    found: dict[Case, dict[str, dict[int, float]]] = field(default_factory=dict)

    def add(self, case: Case, part: str, repetition: int, taken: float) -> None:
        self.found.setdefault(case, {}).setdefault(part, {})[repetition] = taken

    def summary(self) -> JsonDict:
        """The JSON's keys."""
        parts = [part for part in PARTS if any(part in by_part for by_part in self.found.values())]
        return {"emulated": True, "parts": {part: self._part(part) for part in parts}}

    def _part(self, part: str) -> JsonDict:
        logs = {
            case: [
                math.log(taken / by_part[""][at]) for at, taken in by_part[part].items() if at in by_part.get("", {})
            ]
            for case, by_part in self.found.items()
            if part in by_part
        }
        known = {case: found for case, found in logs.items() if found}
        kinds = {kind: [log for case, found in known.items() if case.kind == kind for log in found] for kind in KINDS}
        return {
            "gain": {kind: _gain(found) for kind, found in kinds.items() if found},
            "cases": {" ".join(case): _gain(found) for case, found in known.items()},
            "most": max((_gain(found)["ratio"] for found in known.values()), default=None),
        }


KINDS = ("serving", "first", "drift", "rough")


def _gain(logs: Sequence[float]) -> JsonDict:
    """The geometric mean, and the interval that holds it at 95 %."""
    middle = fmean(logs)
    reach = 1.96 * stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else 0.0
    return {"ratio": math.exp(middle), "low": math.exp(middle - reach), "high": math.exp(middle + reach)}


def show(result: JsonDict, console: Console, picture: Path) -> None:
    """A table, and the cases as a picture."""
    rows = []
    for part, found in result["parts"].items():
        spans = [found["gain"].get(kind) for kind in KINDS]
        most = max(found["cases"].items(), key=lambda case: case[1]["ratio"])
        worth = any(span is not None and span["high"] > 1 + WORTH for span in spans)
        rows.append([part, *map(_span, spans), f"{most[0]}: {_span(most[1])}", "" if worth else "gains nothing"])
    heads = ["without", *KINDS, "where it is missed most", ""]
    console.print(report.table("Time without a part over time with it, emulated", heads, rows))
    lines = {
        part: [(float(at), case["ratio"]) for at, case in enumerate(found["cases"].values())]
        for part, found in result["parts"].items()
    }
    panel = report.Panel("by case", "case", "time without / with", lines, from_zero=False)
    report.panels(picture, "What parts of the policy gain, emulated", [panel])


def _span(span: JsonDict | None) -> str:
    return f"{span['ratio']:.3f} ({span['low']:.3f} to {span['high']:.3f})" if span else ""
