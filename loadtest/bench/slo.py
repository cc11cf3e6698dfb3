"""Requests with latency objectives of three kinds, and ways to serve them: who meets how many.

The sweeps are emulated, in virtual time (`slo_serving.py`): nothing of them is hardware. One of their points is checked
in real time, and the bundled models are served, both by the real server (`slo_served.py`): `--part "real time"` and
`--part bundled`, or without any part after the sweeps. Arrivals are Azure's trace scaled to a rate, or Poisson's where
there is none. Sweeps: the rate; the share of urgent requests and their objective at one rate; classes that peak one
after the other. An objective is of the time per token from the first token on, as published; p99 TTFT, queueing
included, and how many had their first token in time as well are beside it. What is refused or unfinished is a
violation. `hardest` is the highest rate at which the best system that knows no objectives still attains `HARDEST`;
`hardest_tuned` is the same beside systems whose passes an operator has cut to what this device reads its weights for
anyway.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from covey.errors import SettingError
from covey.types import JsonDict
from loadtest.bench import loads, report, slo_served
from loadtest.bench.session import QUICK, Session
from loadtest.bench.slo_serving import (
    BLIND,
    CHAT,
    SUMMARY,
    SYSTEMS,
    TUNED_SYSTEMS,
    URGENT,
    Asked,
    Point,
    System,
    asked,
    play,
)

MIX = {URGENT: 0.6, CHAT: 0.2, SUMMARY: 0.2}
FIXED_RATE = 4.0
STAGGERED_RATES = (FIXED_RATE, 10.0)  # at its peak a class has twice its share of these
KEYS = ("attainment", "goodput", "accepted_per_verification")  # that are shown; the last is the paper's Figure 12
SHARE = 0.6  # of the time is the sweeps' where servers follow
REAL_TIME, BUNDLED = "real time", "bundled"
SERVED = (REAL_TIME, BUNDLED)
SWEEPS = ("rate", "scale", "urgent share", "staggered")
SHARES, SCALES = (0.1, 0.3, 0.5, 0.7, 0.9), (0.6, 0.8, 1.0, 1.2, 1.4, 1.6)
HARDEST = 0.45
REQUESTS, FULL_REQUESTS, QUICK_REQUESTS = 200, 1000, 12
STAGGERED = 360.0  # seconds in which each class has its peak
QUICK_SYSTEMS = ("off", "adaserve", "covey")


@dataclass(frozen=True, slots=True)
class Device:
    """A pair, and seconds that a token takes on an idle one: 0: as its table says."""

    pair: str
    unloaded: float
    rates: tuple[float, ...]


DEVICES = {
    "70B": Device("emulated-70b-4x80g", 0.0, (4.0, 6.0, 8.0, 10.0, 12.0, 16.0)),
    "70B, 33 ms": Device("emulated-70b-4x80g", 0.033, (4.0, 6.0, 8.0, 10.0, 12.0)),  # as in the paper
    "32B": Device("emulated-32b-2x48g", 0.0, (1.0, 2.0, 3.0, 4.0, 5.0)),
}


@dataclass(frozen=True, slots=True)
class Job:
    """One point: which sweep, at which value of it, served by whom."""

    device: str
    sweep: str
    value: float
    system: System
    load: tuple[Asked, ...]
    scale: float
    seed: int

    @property
    def at(self) -> tuple[str, str, float]:
        """The point that all systems have in common."""
        return self.device, self.sweep, self.value

    def play(self) -> Point:
        device = DEVICES[self.device]
        return play(device.pair, self.system, self.load, self.seed, unloaded=device.unloaded, scale=self.scale)


@dataclass
class Measured:
    """Points so far: device -> sweep -> value -> system; and what real servers made of theirs."""

    points: dict[str, dict[str, dict[float, dict[str, Point]]]] = field(default_factory=dict)
    bundled: dict[float, dict[str, Point]] = field(default_factory=dict)
    alone: JsonDict = field(default_factory=dict)
    real_time: JsonDict | None = None

    def add(self, job: Job, point: Point) -> None:
        values = self.points.setdefault(job.device, {}).setdefault(job.sweep, {})
        values.setdefault(job.value, {})[job.system.name] = point

    def summary(self) -> JsonDict:
        """The JSON's keys."""
        return {
            "emulated": {device: _device(sweeps) for device, sweeps in self.points.items()},
            "real_time": self.real_time,
            "bundled": {**self.alone, **_device({"rate": self.bundled})} if self.bundled else None,
        }


def _device(sweeps: dict[str, dict[float, dict[str, Point]]]) -> JsonDict:
    return {
        "points": {
            sweep: {
                f"{value:g}": {name: _as_json(point) for name, point in systems.items()}
                for value, systems in sorted(values.items())
            }
            for sweep, values in sweeps.items()
        },
        "hardest": hardest(sweeps.get("rate", {}), BLIND),
        "hardest_tuned": hardest(sweeps.get("rate", {}), TUNED_SYSTEMS),
        "staggered_attainment": {
            f"{rate:g}": {name: point.attainment for name, point in systems.items()}
            for rate, systems in sorted(sweeps.get("staggered", {}).items())
        },
        "min_goodput_covey_over_adaserve": min(
            (
                systems["covey"].goodput / max(1e-9, systems["adaserve"].goodput)
                for values in sweeps.values()
                for systems in values.values()
                if {"covey", "adaserve"} <= systems.keys()
            ),
            default=None,
        ),
    }


def hardest(rates: dict[float, dict[str, Point]], baselines: Sequence[str]) -> JsonDict | None:
    """Covey beside the best of these systems, at the highest rate at which that one still attains `HARDEST`; `reached`:
    at a higher one it does not."""
    found = None
    for rate, systems in sorted(rates.items()):
        blind = {name: systems[name] for name in baselines if name in systems}
        if "covey" not in systems or not blind:
            continue
        best = max(blind, key=lambda name: blind[name].attainment)
        richest = max(blind, key=lambda name: blind[name].goodput)
        if found is None or blind[best].attainment >= HARDEST:
            own, other = systems["covey"], blind[best]
            found = {
                "rate": rate,
                "best_baseline": best,
                "attainment_best_baseline": other.attainment,
                "attainment_covey": own.attainment,
                "violations_best_baseline_over_covey": _violations(other) / _violations(own),
                "goodput_covey_over_best_baseline": own.goodput / max(1e-9, blind[richest].goodput),
                "attainment_covey_over_best_baseline": own.attainment / max(1e-9, other.attainment),
                "ttft_p99_covey_over_best_baseline": own.ttft_p99 / other.ttft_p99,
                "reached": False,
            }
        else:
            found["reached"] = True
    return found


def _violations(point: Point) -> int:
    return point.requests - point.met + 1


def _as_json(point: Point) -> JsonDict:
    return {
        "attainment": point.attainment,
        "attainment_with_ttft": point.met_both / point.requests,
        "goodput": point.goodput,
        "by_class": {kind: list(counts) for kind, counts in point.by_class.items()},
        "ttft_p99": point.ttft_p99,
        "accepted_per_verification": point.accepted,
        "nodes_per_verification": point.drafted,
        "requests": point.requests,
        "reliability": [list(each) for each in point.reliability],
    }


def run(session: Session) -> None:
    """Measure; results go into the session as they come."""
    measured, wanted = Measured(), session.wanted
    session.summarise = measured.summary
    trace = loads.azure(wanted.data)
    count = session.repetitions(REQUESTS, FULL_REQUESTS, QUICK_REQUESTS)
    found = _jobs(count, wanted.size == QUICK, trace, wanted.seed, wanted.parts)
    jobs = sorted(found, key=lambda job: SWEEPS.index(job.sweep))  # what is cut short has all devices' rates
    session.notes |= {"clock": "virtual", "requests": count, "arrivals": "azure" if trace else "poisson"}
    served = [part for part in SERVED if part in wanted.parts or (not wanted.parts and wanted.size != QUICK)]
    if jobs:
        _sweeps(session, measured, jobs, SHARE if served else 1.0)
    for part in served:
        _serve(session, measured, part, trace)


def _serve(session: Session, measured: Measured, part: str, trace: Sequence[object] | None) -> None:
    """What real servers have to do with. No process is forked after that: gRPC's threads would not survive it."""

    def load(rate: float, count: int) -> list[Asked]:
        return asked(_times(rate, count, trace, session.wanted.seed), MIX, session.wanted.seed)

    def add(rate: float, name: str, point: Point) -> None:
        measured.bundled.setdefault(rate, {})[name] = point
        session.console.print(f"bundled, {rate:g} a second: {name} {point.attainment:.3f}")

    if part == REAL_TIME:
        measured.real_time = slo_served.in_real_time(session, load)
    else:
        measured.alone = slo_served.bundled(session, load, add)


def _sweeps(session: Session, measured: Measured, jobs: Sequence[Job], share: float) -> None:
    """In that share of the time."""
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        waiting: dict[Future[Point], Job] = {pool.submit(job.play): job for job in jobs}
        try:
            for call, _ in zip(as_completed(waiting), session.steps([f"{len(jobs)} points"] * len(jobs))):
                job = waiting[call]
                measured.add(job, call.result())
                systems = measured.points[job.device][job.sweep][job.value]
                if len(systems) == sum(other.at == job.at for other in jobs):
                    session.console.print(f"{', '.join(map(str, job.at))}: {_attained(systems)}")
                if session.out_of_time(share):
                    session.interrupted = True
                    break
        finally:
            pool.shutdown(cancel_futures=True)


def _attained(systems: dict[str, Point]) -> str:
    best = max((name for name in systems if name in BLIND), key=lambda name: systems[name].attainment, default="")
    shown = [name for name in (best, *(name for name in ("adaserve", "covey") if name in systems)) if name]
    return ", ".join(f"{name} {systems[name].attainment:.3f}" for name in shown)


def _jobs(count: int, quick: bool, trace: Sequence[object] | None, seed: int, parts: Sequence[str]) -> Iterator[Job]:
    every = [system.name for system in SYSTEMS]
    named = [name for name in every if name in parts] or (QUICK_SYSTEMS if quick else every)
    systems = [system for system in SYSTEMS if system.name in named]
    devices = [device for device in DEVICES if device in parts] or list(DEVICES)
    sweeps = [part for part in parts if part not in DEVICES and part not in named]  # "rate", or "rate:10"
    for part in sweeps:
        if part.partition(":")[0] not in (*SWEEPS, *SERVED):
            allowed = ", ".join((*SWEEPS, *SERVED, *DEVICES, *every))
            raise SettingError(f"--part: got {part!r}, allowed: {allowed}; of a sweep one value: rate:10")
    for device in devices:
        rates = DEVICES[device].rates
        points: list[tuple[str, float, list[Asked], float]] = [
            ("rate", rate, asked(_times(rate, count, trace, seed), MIX, seed), 1.2)
            for rate in (rates[:1] if quick else rates)
        ]
        if not quick:
            for share in SHARES:
                mix = {URGENT: share, CHAT: (1 - share) / 2, SUMMARY: (1 - share) / 2}
                points.append(("urgent share", share, asked(_times(FIXED_RATE, count, trace, seed), mix, seed), 1.2))
            same = asked(_times(FIXED_RATE, count, trace, seed), MIX, seed)
            points += [("scale", scale, same, scale) for scale in SCALES]
            points += [("staggered", rate, _staggered(rate, count, seed), 1.2) for rate in STAGGERED_RATES]
        for sweep, value, load, scale in points:
            if not sweeps or sweep in sweeps or f"{sweep}:{value:g}" in sweeps:
                for system in systems:
                    yield Job(device, sweep, value, system, tuple(load), scale, seed)


def _times(rate: float, count: int, trace: Sequence[object] | None, seed: int) -> loads.Times:
    if trace is None:
        return loads.poisson(rate, count, seed)
    return loads.recorded(trace, rate, count / rate, seed)  # type: ignore[arg-type]


def _staggered(rate: float, count: int, seed: int) -> list[Asked]:
    """Each class has its peak in a third of the time of its own."""
    found: list[Asked] = []
    span = STAGGERED * min(1.0, count / (STAGGERED * rate))
    for place, (kind, share) in enumerate(MIX.items()):
        times = loads.poisson(2 * rate * share, math.ceil(2 * rate * share * span), seed + place)
        peak = (place + 0.5) * span / len(MIX)
        kept = [at for at in times if at <= span and _unit(at) < math.exp(-(((at - peak) / (span / 5)) ** 2))]
        found += asked(kept, {kind: 1.0}, seed + place)
    return sorted(found, key=lambda each: each.at)


def _unit(at: float) -> float:
    """A number in [0, 1) that depends on the time alone."""
    return math.modf(at * 7919.0)[0]


def _reliability(points: JsonDict) -> dict[str, list[tuple[float, float]]]:
    """Of drafted nodes, how often they were right over how likely they were said to be, by who counted; of the last
    point of a sweep."""
    last = [list(values.values())[-1] for values in points.values()][-1:]
    return {
        name: [(said, right) for said, right, _ in point["reliability"]]
        for systems in last
        for name, point in systems.items()
        if point["reliability"]
    }


def show(result: JsonDict, console: Console, picture: Path) -> None:
    """Tables of all sweeps, and a picture of each device: the first one's is `picture`, the others' are beside it."""
    served = {"bundled": result["bundled"]} if result["bundled"] else {}
    for place, (device, found) in enumerate({**result["emulated"], **served}.items()):
        panels = []
        for sweep, values in found["points"].items():
            names = list(next(iter(values.values())))
            for key in KEYS if sweep == "rate" else KEYS[:2]:
                rows = [
                    [
                        name,
                        *(
                            report.number(at.get(name, {}).get(key), 0 if key == "goodput" else 3)
                            for at in values.values()
                        ),
                    ]
                    for name in names
                ]
                console.print(report.table(f"{device}, {key} by {sweep}", ["", *values], rows))
                if len(values) > 1:
                    lines = {
                        name: [(float(value), at[name][key]) for value, at in values.items() if name in at]
                        for name in names
                    }
                    panels.append(report.Panel(f"{key} by {sweep}".replace("_", " "), sweep, "", lines))
        for key in ("hardest", "hardest_tuned"):
            console.print(f"{key}, {device}: {found[key]}")
        said = _reliability(found["points"])
        if said:
            panels.append(report.Panel("reliability", "said", "right", {**said, "said": [(0, 0), (1, 1)]}))
        if panels:
            slug = "-".join(re.findall(r"\w+", device)).lower()
            beside = picture.with_name(f"{picture.stem}-{slug}{picture.suffix}")
            report.panels(beside if place else picture, f"Latency objectives: {device}", panels)
    if result["real_time"]:
        found = result["real_time"]
        rows = [
            [name, *(report.number(each[clock]["attainment"], 3) for clock in ("virtual", "real"))]
            for name, each in found["systems"].items()
        ]
        console.print(report.table(f"attainment at {found['rate']:g} a second", ["", "virtual", "real"], rows))
