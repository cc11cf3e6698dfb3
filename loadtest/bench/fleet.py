"""Measures how many replicas a load takes, and what becomes of many of them. Everything here is a simulation's.

`plan`: what `covey plan` says of one target beside the engine, scheduler and planner that serve, over emulated devices
in virtual time. The rate is the most at which the formula has the objective kept in 95 % of the time, and parts of it.

`fleet`: 64 to 1,024 simulated replicas behind routers of one policy, in virtual time: each dies every twenty minutes on
average and is back after half a minute, and a sixteenth of all dies at once. Two loads, as parts of what a replica
takes that has kept every prefix. A router takes 1 ms of its own for a request, the index of prefixes 0.25: assumed.

predicted_over_simulated   time per token by the formula over the simulated: least, mean and most
capacity_over_simulated    rate at which the formula has 95 % keep to the objective over the rate at which they did
goodput                    tokens of streams that kept to the objectives, over all that were asked for
first_to_break             for each load and policy the smallest fleet whose goodput is below 0.9
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean

from rich.console import Console

from covey.contracts.types import JsonDict
from covey_client.star.capacity import LatencyGoal
from loadtest.bench import report
from loadtest.bench.emulated_pairs import PAIRS
from loadtest.bench.fleet_planned import PARTS, POLICIES, Checked, by_part, capacity, check, server_of
from loadtest.bench.session import QUICK, Session
from loadtest.simulation.fleet import Fleet, FleetPlayed, play
from loadtest.simulation.routing import LeastQueue, Prefix, RoundRobin, Routing

PLAN, FLEET = "plan", "fleet"
PLANNED = ("emulated-7b", "emulated-13b-40g", "emulated-70b-4x80g")
REQUESTS, FULL_REQUESTS, QUICK_REQUESTS = 500, 2000, 60

SIZES, QUICK_SIZES = (64, 128, 256, 512, 1024), (64,)
SECONDS, WARM, QUICK_SECONDS, FULL_SECONDS = 60.0, 20.0, 30.0, 240.0
LOADS = (0.45, 0.7)
EACH_ROUTER = 64  # replicas
LIFE, OUTAGE, INDEX = 1200.0, 1 / 16, 0.00025
BROKEN = 0.9
ROUTING: Mapping[str, Callable[[int], Routing]] = {
    "round robin": lambda _replicas: RoundRobin(),
    "round robin, one router": lambda _replicas: RoundRobin(),
    "least queue": lambda _replicas: LeastQueue(),
    "prefix, within 10": lambda replicas: Prefix(replicas, 10),
    "prefix, within 64": lambda replicas: Prefix(replicas, 64),
}


@dataclass
class FleetFound:
    checked: dict[tuple[str, str], list[Checked]] = field(default_factory=dict)
    played: dict[tuple[float, str], dict[int, FleetPlayed]] = field(default_factory=dict)

    def summary(self) -> JsonDict:
        ratios = [
            each.predicted / each.simulated
            for found in self.checked.values()
            for each in found
            if each.predicted is not None and each.part <= 1
        ]
        capacities = {" ".join(key): capacity(found) for key, found in self.checked.items()}
        goodput = {
            f"{load:g}": {
                policy: {str(size): round(each.goodput / each.offered, 4) for size, each in self._sizes(load, policy)}
                for policy in ROUTING
            }
            for load in LOADS
        }
        return {
            "emulated": True,
            "predicted_over_simulated": [min(ratios), fmean(ratios), max(ratios)] if ratios else None,
            "capacity_over_simulated": capacities or None,
            "goodput": goodput,
            "first_to_break": {
                load: {
                    policy: next((n for n, part in sizes.items() if part < BROKEN), None)
                    for policy, sizes in of.items()
                }
                for load, of in goodput.items()
            },
            "plan": {
                " ".join(key): [asdict(each) for each in sorted(found, key=by_part)]
                for key, found in self.checked.items()
            },
            "fleet": {
                f"{load:g} {policy}": {str(size): _finite(asdict(each)) for size, each in self._sizes(load, policy)}
                for load in LOADS
                for policy in ROUTING
                if (load, policy) in self.played
            },
        }

    def _sizes(self, load: float, policy: str) -> list[tuple[int, FleetPlayed]]:
        return sorted(self.played.get((load, policy), {}).items())


def run(session: Session) -> None:
    measured = FleetFound()
    session.summarise = measured.summary
    parts = session.wanted.parts_of((PLAN, FLEET))
    if PLAN in parts:
        _plan(session, measured)
    if FLEET in parts:
        _fleet(session, measured)


def _plan(session: Session, measured: FleetFound) -> None:
    size = session.wanted.size
    count = session.wanted.sized(REQUESTS, FULL_REQUESTS, QUICK_REQUESTS)
    pairs = [pair for pair in PAIRS if pair.name in (PLANNED[:1] if size == QUICK else PLANNED)]
    jobs = [
        ((pair.name, policy), check, (pair, policy, part, count, session.wanted.seed))
        for pair in pairs
        for policy in POLICIES
        for part in PARTS
    ]
    for key, checked in session.side_by_side(jobs):
        measured.checked.setdefault(key, []).append(checked)


def fleet(size: int, load: float, policy: str, seconds: float) -> Fleet:
    """Return a fleet; `load` is over what a replica takes that has kept every prefix."""
    server, objective = server_of(PAIRS[0], drafts=True), LatencyGoal(ttft=1.0, tpot=0.04)
    most = server.most(objective)
    assert most is not None
    return Fleet(
        *(server, size, load * most.rate, objective, seconds, WARM),
        routers=1 if policy.endswith("one router") else max(1, size // EACH_ROUTER),
        index=INDEX if policy.startswith("prefix") else 0.0,
        life=LIFE,
        outage=OUTAGE,
    )


def simulate(size: int, load: float, policy: str, seconds: float, seed: int) -> FleetPlayed:
    return play(fleet(size, load, policy, seconds), ROUTING[policy](size), seed)


def _fleet(session: Session, measured: FleetFound) -> None:
    size, seed = session.wanted.size, session.wanted.seed
    seconds = session.wanted.sized(SECONDS, FULL_SECONDS, QUICK_SECONDS)
    jobs = [
        ((load, policy, replicas), simulate, (replicas, load, policy, seconds, seed))
        for replicas in reversed(QUICK_SIZES if size == QUICK else SIZES)  # the longest first
        for load in LOADS
        for policy in ROUTING
    ]
    for (load, policy, replicas), played in session.side_by_side(jobs):
        measured.played.setdefault((load, policy), {})[replicas] = played


def _finite(row: JsonDict) -> JsonDict:
    """Return the row without infinity, which JSON has not: what never came is null."""
    row["ttft"] = [each if math.isfinite(each) else None for each in row["ttft"]]
    return row


def show(result: JsonDict, console: Console, picture: Path) -> None:
    checked = [
        [name, report.number(each["part"]), *(report.number(each[k], 4) for k in ("predicted", "simulated", "kept"))]
        for name, found in result["plan"].items()
        for each in found
    ]
    if checked:
        columns = ("pair", "of planned", "s/token", "simulated", "kept")
        console.print(report.table("covey plan, emulated devices", columns, checked))
    if result["fleet"]:
        sizes = sorted({int(size) for found in result["fleet"].values() for size in found})
        rows = [
            [name, *(_cell(found[str(size)]) if str(size) in found else "-" for size in sizes)]
            for name, found in result["fleet"].items()
        ]
        columns = ("load, policy", *map(str, sizes))
        console.print(report.table("Simulated replicas: goodput as a share, TTFT p99 in s", columns, rows))
        title = "Replicas that die and come back, simulated: routers of one policy"
        report.panels(picture, title, list(_panels(result["fleet"])))
    for key in ("predicted_over_simulated", "capacity_over_simulated", "first_to_break"):
        console.print(f"{key} {result[key]}")


def _cell(row: JsonDict) -> str:
    return f"{row['goodput'] / row['offered']:.2f} {report.number(row['ttft'][1], 1)}"


def _panels(fleets: JsonDict) -> list[report.Panel]:
    values: Mapping[str, tuple[Callable[[JsonDict], float | None], bool]] = {  # by what it is; whether by decades
        "goodput, share": (lambda row: row["goodput"] / row["offered"], False),
        "TTFT p99, s": (lambda row: row["ttft"][1], True),
        "prefixes kept, share": (lambda row: row["hits"], False),
        "in routers and index, p99, ms": (lambda row: 1000 * row["wait"], True),
    }

    def panel(load: float, said: str) -> report.Panel:
        value, decades = values[said]
        lines = {
            policy: report.line({size: value(each) for size, each in fleets.get(f"{load:g} {policy}", {}).items()})
            for policy in ROUTING
        }
        title = f"{load:.0%} of what a replica takes that kept all prefixes"
        return report.Panel(title, "replicas", said, lines, log_x=True, log_y=decades)

    return [panel(load, said) for load in LOADS for said in values]
