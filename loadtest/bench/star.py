"""Measures one drafter for several targets.

`emulated`, in virtual time: the service's own queue before a drafter with the paper's timings, one to eight targets,
calls served one at a time and joined, beside the formula of `covey plan-star` and the paper's Table 1. Times and
acceptance are drawn, targets beyond the third are faster, as the paper's are; the formula is given their means.

`servers`, in real time: three servers with an emulated target each and a fourth with their emulated drafter. What is
measured with one target (t_s, t_v and t_c together) predicts two and three. Devices are emulated: they sleep, so that
what is measured beside them is the way through Triton, gRPC and the service.

`remote_over_local` is the paper's Figure 4.

measured_over_model   throughput over the formula's, N = 1 to 8, one call at a time
batched_over_fifo     throughput with joined rows over one call at a time, N = 6
jain_fairness         of the drafter's time that six targets of unequal loads get, each over its fair share (max-min),
                      where two ask for so little that they could not use a sixth; _heavy: where each could use more
scaling_n3            tokens/s of three servers over one's
predicted_n2, _n3     tokens/s over what follows from one target's times
remote_over_local     tokens/s of one target with its drafter elsewhere over one that has it beside itself
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from rich.console import Console

from covey.contracts.profile import costs_file
from covey.contracts.types import JsonDict
from covey.planner.cost_table import load_costs
from covey.star.queue import QueueLimits
from covey_client.costs.surface import Surface
from covey_client.star import paper
from covey_client.star.model import Star
from loadtest.bench import report, star_servers
from loadtest.bench.session import QUICK, Session
from loadtest.simulation.star import StarPlayed, StarTarget, play

EMULATED, SERVERS = "emulated", "servers"
TARGETS = range(1, 9)
SECONDS, QUICK_SECONDS = 240.0, 20.0
FASTER, SAME = 0.8, 3  # of a target's time, beyond so many targets
TRANSFER = 0.002  # of Z
FIFO, JOINED = "one at a time", "joined"
SHORTEST, LONGEST = 0.008, 0.020  # gaps between which a drafter goes cold
TABLE, DRAFTER = "emulated-7b-24g", "draft_emulated"  # by which more rows take longer
KEYS = (
    "measured_over_model",
    "batched_over_fifo",
    "jain_fairness",
    "jain_fairness_heavy",
    *star_servers.KEYS,
)
LIGHT = (16, 8, 4, 8, 2, 8)  # depths of six targets, two of which ask for less than a sixth of the drafter
UNEQUAL = (16, 8, 12, 8, 16, 10)  # ... and of such as all could use more


def run(session: Session) -> None:
    measured = StarFound()
    session.summarise = measured.summary
    parts = session.wanted.parts_of((EMULATED, SERVERS))
    if EMULATED in parts:
        emulated(session, measured)
    if SERVERS in parts:
        star_servers.run(session, measured.servers)


def emulated(session: Session, measured: StarFound) -> None:
    seconds = QUICK_SECONDS if session.wanted.size == QUICK else SECONDS
    step = by_rows_and_gap()
    steps = [(f"{rule}, {count} targets", (rule, count)) for count in TARGETS for rule in (FIFO, JOINED)]
    for rule, count in session.each(steps):
        limits = QueueLimits(rows=1) if rule == FIFO else QueueLimits()
        rng = np.random.default_rng([session.wanted.seed, count])
        measured.played[rule, count] = play(fleet(count), step, limits, rng, seconds)
    for depths in (UNEQUAL, LIGHT):
        devices = [StarTarget(paper.AWAY - TRANSFER, TRANSFER, paper.star().acceptance, depth) for depth in depths]
        played = play(devices, step, QueueLimits(rows=1), np.random.default_rng(session.wanted.seed), seconds)
        measured.fairness[depths] = jain(played, devices)


def fleet(count: int) -> list[StarTarget]:
    acceptance = paper.star().acceptance
    return [
        StarTarget((paper.AWAY - TRANSFER) * (1 if target < SAME else FASTER), TRANSFER, acceptance, paper.DEPTH)
        for target in range(count)
    ]


def by_rows_and_gap() -> Callable[[int, float], float]:
    """Return how long a level takes: the paper's warm time after short gaps, its cold one after long ones, and for more
    rows as much more as the cost table says."""
    surface = Surface(load_costs(costs_file(TABLE)).draft[DRAFTER])

    def step(rows: int, gap: float) -> float:
        cold = min(1.0, max(0.0, (gap - SHORTEST) / (LONGEST - SHORTEST)))
        growth = surface(rows, paper.DEPTH) / surface(1, paper.DEPTH)
        return float((paper.WARM + cold * (paper.COLD - paper.WARM)) * growth)

    return step


def jain(played: StarPlayed, devices: list[StarTarget]) -> float:
    """Return Jain's index of each target's time of the drafter over its fair share, which is what it would use alone,
    or an equal part of what those with less leave."""
    step, left = median(played.steps), 1.0
    wants = [device.depth * step / (device.depth * step + device.verify + device.transfer) for device in devices]
    order = sorted(range(len(devices)), key=wants.__getitem__)
    shares = []
    for place, target in enumerate(order):
        fair = min(wants[target], left / (len(devices) - place))
        left -= fair
        shares.append(played.service[target] / played.seconds / fair)
    return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))


def formula(played: StarPlayed, count: int) -> Any:
    """Return the point of `covey plan-star` with this run's means."""
    away = fmean(played.away)
    star = Star(fmean(played.steps), away, 0.0, paper.star().acceptance, paper.DEPTH, plain=paper.star().plain)
    return star.point(count)


@dataclass
class StarFound:
    played: dict[tuple[str, int], StarPlayed] = field(default_factory=dict)
    fairness: dict[tuple[int, ...], float] = field(default_factory=dict)  # by depths
    servers: star_servers.StarServerRates = field(default_factory=star_servers.StarServerRates)

    def summary(self) -> JsonDict:
        ratios = [
            self.played[FIFO, count].rate / formula(self.played[FIFO, count], count).whole
            for count in TARGETS
            if (FIFO, count) in self.played
        ]
        six = [self.played.get((rule, 6)) for rule in (JOINED, FIFO)]
        return {
            "measured_over_model": ratios or None,
            "batched_over_fifo": six[0].rate / six[1].rate if six[0] and six[1] else None,
            "jain_fairness": self.fairness.get(LIGHT),
            "jain_fairness_heavy": self.fairness.get(UNEQUAL),
            "emulated": {
                rule: {str(count): self._cell(rule, count) for count in TARGETS if (rule, count) in self.played}
                for rule in (FIFO, JOINED)
            },
            "paper": {
                str(row.targets): {"calls": row.calls, "wait_ms": row.wait, "idle_ms": row.idle} for row in paper.TABLE
            },
            **self.servers.summary(),
        }

    def _cell(self, rule: str, count: int) -> JsonDict:
        played = self.played[rule, count]
        point = formula(played, count)
        return {
            "tokens_per_second": played.rate,
            "each": played.rate / count,
            "calls": played.calls / played.seconds,
            "wait_ms": 1000 * played.waited / played.calls,
            "idle_ms": 1000 * played.idle / played.calls,
            "load": 1 - played.idle / played.seconds,
            "model": {"tokens_per_second": point.whole, "wait_ms": 1000 * point.wait, "idle_ms": 1000 * point.gap},
        }


def show(result: JsonDict, console: Console, picture: Path) -> None:
    rows, panels = [], []
    for count in TARGETS:
        cells = [result["emulated"][rule].get(str(count)) for rule in (FIFO, JOINED)]
        if not all(cells):
            continue
        one, joined = cells
        printed = result["paper"].get(str(count), {})
        numbers = (
            *(one["calls"], printed.get("calls"), one["wait_ms"], one["model"]["wait_ms"], printed.get("wait_ms")),
            *(one["idle_ms"], one["model"]["idle_ms"], printed.get("idle_ms"), 100 * one["load"]),
            *(one["tokens_per_second"], one["model"]["tokens_per_second"], joined["tokens_per_second"]),
        )
        rows.append([str(count), *(report.number(value, 1) for value in numbers)])
    if rows:
        columns = ("N", "R_q", "paper", "wait", "model", "paper", "idle", "model", "paper", "load %")
        columns += ("tok/s", "model", "joined")
        console.print(report.table("Emulated, one call at a time, ms a call; last: joined rows", columns, rows))
        cells = {**result["emulated"], "formula": {n: cell["model"] for n, cell in result["emulated"][FIFO].items()}}
        lines = {
            name: report.line({n: cell["tokens_per_second"] for n, cell in by.items()}) for name, by in cells.items()
        }
        panels.append(report.Panel("One drafter, emulated devices", "targets", "tokens/s", lines))
    star_servers.show(result, console)
    if panels:
        report.panels(picture, "StarSD", panels)
    for key in KEYS:
        value = result.get(key)
        shown = ", ".join(f"{each:.2f}" for each in value) if isinstance(value, list) else report.number(value)
        console.print(f"{key} {shown}")
