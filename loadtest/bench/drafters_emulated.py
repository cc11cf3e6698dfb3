"""Part `emulated` of the bench `drafters`: MetaSD's Table 3 on an emulated 7B pair, in virtual time.

Five specialists and a general drafter agree with the target as often as the paper's speed-ups say; drafters share one
device, so that calls to several in one round take their time one after the other, unless a part says otherwise. All
policies draft 5 tokens a round, the paper's fixed length, and start without having learnt anything but what calls cost.
Not fitted: what any policy makes of that. **Nothing here is hardware.**
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from rich.console import Console

from covey.types import JsonDict
from loadtest.bench import drafters_measured as measured_
from loadtest.bench import report
from loadtest.bench.drafters_measured import COVEY, GENERAL, HEDGE, OFF, ORACLE, RANDOM, UCB_BD, UCB_BE
from loadtest.bench.drafters_published import DRAFTERS, PRINTED, SPECIALISTS, SPEEDUPS, rates
from loadtest.bench.drafters_serving import Case, Served, costs, play
from loadtest.bench.session import FULL, QUICK, Session

BANDITS = ("exp3", "sh", "petc", UCB_BE, UCB_BD, "d-ucb", "sw-ucb", "ucbspec", "exp3spec", HEDGE)
ALONE = {name.removeprefix("draft_"): f"fixed:{name}" for name in DRAFTERS}
ALL = (OFF, *ALONE, RANDOM, *BANDITS, COVEY, ORACLE)
SIX = (OFF, GENERAL, RANDOM, UCB_BE, UCB_BD, HEDGE, COVEY, ORACLE)
THREE = (OFF, GENERAL, COVEY, ORACLE)
GAPS, MIXED_GAPS = (0.0, 0.25, 0.5, 0.75, 1.25), (0.0, 0.5)
SEEDS, FULL_SEEDS = 2, 10
REQUESTS, MIXED_REQUESTS, QUICK_REQUESTS = 60, 120, 5


def cases(size: str) -> dict[str, tuple[Case, tuple[str, ...]]]:
    """Who serves what, by name."""
    alone, mixed = Case(), Case(callers=16)
    if size == QUICK:
        return {"c1": (alone, THREE)}
    found = {"c1": (alone, ALL), "mixed16": (mixed, ALL)}
    found |= {f"gap {gap:g}": (replace(alone, gap=gap), SIX) for gap in GAPS}
    found |= {f"gap {gap:g} mixed": (replace(mixed, gap=gap), THREE) for gap in MIXED_GAPS}
    found["mixed16 at the same time"] = replace(mixed, one_device=False), SIX
    for name, case in (("c1", alone), ("mixed16", mixed)):
        found[f"{name}, sixteen drafters"] = replace(case, weak=10), SIX
        found[f"{name}, prompts tell nothing"] = replace(case, telling=False), SIX
        found[f"{name}, covey's length"] = replace(case, length_policy="covey"), SIX
    if size == FULL:
        found |= {f"mixed{callers}": (replace(mixed, callers=callers), ALL) for callers in (2, 4)}
    return found


@dataclass
class Measured:
    """All runs so far, by case, system and seed."""

    runs: dict[str, dict[str, dict[int, Served]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(dict))
    )

    def summary(self) -> JsonDict:
        return (
            {}
            if not self.runs
            else {"emulated": True, "parts": {name: self._part(runs) for name, runs in self.runs.items()}}
        )

    def _part(self, runs: dict[str, dict[int, Served]]) -> JsonDict:
        whole = set.intersection(*(set(served) for served in runs.values()))  # seeds that everybody has served
        each = {name: [served[seed] for seed in sorted(whole)] for name, served in runs.items() if whole}
        speeds = {name: [served.speeds for served in done] for name, done in each.items()}
        return {
            **measured_.keys({name: [served.rate for served in done] for name, done in each.items()}),
            "speedups": measured_.by_domain(speeds),
            "tokens_per_round": {name: fmean(one.tokens_per_round for one in done) for name, done in each.items()},
            "best_arm_ratio": {name: _best_arm(done) for name, done in each.items() if name not in (OFF, *ALONE)},
        }


def policy_of(system: str) -> str:
    return ALONE.get(system, system)


def run(session: Session, measured: Measured) -> None:
    """Measure; results go into `measured` as they come."""
    wanted = session.wanted
    seeds = session.repetitions(SEEDS, FULL_SEEDS)
    session.notes |= {
        "clock": "virtual",
        "acceptance": {domain: dict(found) for domain, found in rates(costs(), 1.0).items()},
        "printed": {"speedups": SPEEDUPS, "drafters": [*SPECIALISTS.values(), "OFA"], "policies": PRINTED},
    }
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        waiting: dict[Future[Served], tuple[str, str, int]] = {}
        for seed in range(wanted.seed * 100, wanted.seed * 100 + seeds):
            for name, (case, systems) in cases(wanted.size).items():
                count = QUICK_REQUESTS if wanted.size == QUICK else REQUESTS if case.callers == 1 else MIXED_REQUESTS
                for system in systems:
                    waiting[pool.submit(play, policy_of(system), case, count, seed)] = name, system, seed
        try:
            labels = [f"{len(waiting)} runs in virtual time"] * len(waiting)
            for call, _ in zip(as_completed(waiting), session.steps(labels)):
                name, system, seed = waiting[call]
                measured.runs[name][system][seed] = call.result()
                if session.out_of_time():
                    session.interrupted = True
                    break
        finally:
            pool.shutdown(cancel_futures=True)


def _best_arm(done: Iterable[Served]) -> list[float]:
    """The share of requests that draft with their domain's best drafter, by round of the request."""
    served = list(done)
    asked = [sum(one.asked[at] for one in served) for at in range(len(served[0].asked))] if served else []
    return [sum(one.best[at] for one in served) / count for at, count in enumerate(asked) if count]


def show(result: JsonDict, console: Console, picture: Path) -> None:
    """Tables, and beside them a picture."""
    parts = result["parts"]
    for name in ("c1", "mixed16"):
        if name in parts:
            console.print(measured_.shown(f"Emulated, {name}: speed-up by domain", parts[name]["speedups"]))
    console.print(measured_.shown_keys("Emulated: covey", parts))
    panels = []
    if parts.get("c1", {}).get("best_arm_ratio"):
        lines = {
            name: [(float(at), share) for at, share in enumerate(ratio, 1)]
            for name, ratio in parts["c1"]["best_arm_ratio"].items()
        }
        panels.append(report.Panel("One request at a time", "round of the request", "best-arm ratio", lines))
    gaps = {1.0: parts.get("c1")} | {gap: parts.get(f"gap {gap:g}") for gap in GAPS}
    lines = {
        key.removeprefix("covey_").replace("_", " "): [
            (gap, part[key]["median"]) for gap, part in sorted(gaps.items()) if part and part[key]
        ]
        for key in measured_.AGAINST
    }
    if any(lines.values()):
        lines = {name: points for name, points in lines.items() if points}
        panels.append(report.Panel("Over the gap", "gap to the general drafter", "covey over", lines, from_zero=False))
    report.panels(picture, "Emulated: which drafter", panels)
