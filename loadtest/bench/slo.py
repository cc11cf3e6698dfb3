"""Compares systems by the share of requests with latency objectives, of three kinds, that they meet.

They are emulated, in virtual time (`slo_serving.py`): nothing here is hardware. `python -m loadtest --mix` asks a real
server for such classes. Arrivals are Azure's trace scaled to several rates, or Poisson's if there is no trace. An
objective limits the time per token from the first token on, as published. The p99 TTFT, which includes queueing, is
also reported. A refused or unfinished request is a violation. In systems with tuned chunks an operator has cut passes
to the tokens that cost this device no extra time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from covey.contracts.types import JsonDict
from loadtest.arrivals import Arrival, read_azure
from loadtest.bench import loads, report
from loadtest.bench.session import Session
from loadtest.bench.slo_serving import CHAT, SUMMARY, SYSTEMS, URGENT, Point, asked, play

MIX = {URGENT: 0.6, CHAT: 0.2, SUMMARY: 0.2}
KEYS = ("attainment", "goodput", "accepted_per_verification")  # that are shown; the last is the paper's Figure 12
REQUESTS, QUICK_REQUESTS = 200, 12
QUICK_SYSTEMS = ("off", "adaserve", "adaptive")


DEVICES = {  # a pair, and requests a second
    "70B": ("emulated-70b-4x80g", (4.0, 6.0, 8.0, 10.0, 12.0, 16.0)),
    "32B": ("emulated-32b-2x48g", (1.0, 2.0, 3.0, 4.0, 5.0)),
}


@dataclass
class SloPoints:
    """Holds the points so far: device -> rate -> system."""

    points: dict[str, dict[float, dict[str, Point]]] = field(default_factory=dict)

    def summary(self) -> JsonDict:
        """Return the JSON's keys."""
        return {"emulated": {device: _device(rates) for device, rates in self.points.items()}}


def _device(rates: dict[float, dict[str, Point]]) -> JsonDict:
    return {
        "points": {
            f"{rate:g}": {name: _as_json(point) for name, point in systems.items()}
            for rate, systems in sorted(rates.items())
        },
    }


def _as_json(point: Point) -> JsonDict:
    return {
        "attainment": point.attainment,
        "goodput": point.goodput,
        "by_class": {kind: list(counts) for kind, counts in point.by_class.items()},
        "ttft_p99": point.ttft_p99,
        "accepted_per_verification": point.accepted,
        "requests": point.requests,
    }


def run(session: Session) -> None:
    """Measure; results go into the session as they come."""
    measured, wanted = SloPoints(), session.wanted
    session.summarise = measured.summary
    trace = read_azure(wanted.data) if wanted.data else None
    count = session.repetitions(REQUESTS, QUICK_REQUESTS)
    devices = wanted.parts_of(DEVICES)
    jobs = list(_jobs(count, wanted.quick, trace, wanted.seed, devices))
    session.notes |= {"clock": "virtual", "requests": count, "arrivals": "azure" if trace else "poisson"}
    for (device, rate, system), point in session.side_by_side(jobs):
        measured.points.setdefault(device, {}).setdefault(rate, {})[system] = point


def _jobs(
    count: int, quick: bool, trace: Sequence[Arrival] | None, seed: int, devices: Sequence[str]
) -> Iterator[tuple[tuple[str, float, str], Callable[..., Point], tuple[Any, ...]]]:
    """Yield device, rate and system of each point, and the call that plays it."""
    systems = [system for system in SYSTEMS if not quick or system.name in QUICK_SYSTEMS]
    for name in devices:
        pair, rates = DEVICES[name]
        for rate in rates[: 1 if quick else None]:
            load = tuple(asked(loads.at_rate(rate, count, trace, seed), MIX, seed))
            for system in systems:
                yield (name, rate, system.name), play, (pair, system, load, seed)


def show(result: JsonDict, console: Console) -> None:
    for device, found in result["emulated"].items():
        for key in KEYS:
            values = {rate: {name: point[key] for name, point in at.items()} for rate, at in found["points"].items()}
            console.print(report.grid(f"{device}, {key} by rate", values, 0 if key == "goodput" else 3))
