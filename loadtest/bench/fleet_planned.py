"""Compares what `covey plan` says of one target with the engine, scheduler and planner that serve, over emulated
devices in virtual time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from covey_client.star.capacity import QUANTILE, LatencyGoal, TargetLoad
from loadtest.bench import loads
from loadtest.bench.emulated_pairs import EmulatedPair, requests
from loadtest.bench.emulated_serving import play

POLICIES = {"off": False, "covey": True}  # whether they draft
PARTS = (0.75, 0.85, 1.0, 1.15)  # of the planned rate
TTFT, SLOWER = 2.0, 1.8  # objectives: seconds, and over the time per token of one request alone
EDGES = 6  # an n-th part of the requests at either end does not count: the server fills and empties


@dataclass(frozen=True, slots=True)
class Checked:
    """Holds what the formula says of one rate of one pair, and what was simulated."""

    part: float
    predicted: float | None  # seconds per token; None: more than it finishes
    simulated: float
    kept: float  # share of the requests that kept to the objective
    planned: float  # requests a second at which the formula has QUANTILE keep to it


def check(pair: EmulatedPair, policy: str, part: float, count: int, seed: int) -> Checked:
    """Compare one rate. The formula knows the mean lengths of what is asked, and nothing of the engine's own time,
    which is none here."""
    lengths = requests(pair, count, seed)
    server = replace(
        server_of(pair, drafts=POLICIES[policy]),
        costs=replace(pair.table, overhead=()),
        prompt=fmean(each.prompt for each in lengths),
        output=fmean(each.output for each in lengths),
    )
    alone = server.at(1e-6)
    assert alone is not None
    objective = LatencyGoal(ttft=TTFT, tpot=SLOWER * alone.tpot)
    most = server.most(objective)
    assert most is not None, "it is kept alone"
    times = loads.poisson(part * most.rate, count, seed)
    served = play(pair, policy, times, lengths, seed)
    inner = slice(count // EDGES, count - count // EDGES)
    first, last = np.array(served.firsts)[inner], np.array(served.latencies)[inner]
    tokens = np.array([length.output - 1 for length in lengths])[inner]
    kept = (first <= objective.ttft) & (last - first <= objective.tpot * tokens)
    point = server.at(part * most.rate)
    predicted = None if point is None else point.tpot
    return Checked(part, predicted, float((last - first).sum() / tokens.sum()), float(kept.mean()), most.rate)


def server_of(pair: EmulatedPair, *, drafts: bool) -> TargetLoad:
    return TargetLoad(
        pair.table,
        pair.dataset.prompt,
        pair.dataset.output,
        pair.profile.scheduler.max_running,
        kv_tokens=pair.blocks * pair.profile.target.block_size,
        spread=pair.dataset.output_spread,
        acceptance=pair.right(),
        drafter=pair.drafters[0] if drafts else "",
    )


def capacity(checked: Sequence[Checked]) -> float | None:
    """Return the planned rate over that at which QUANTILE kept to the objective, on lines between those that were
    simulated; None where it is not between them."""
    points = sorted(checked, key=by_part)
    for low, high in itertools.pairwise(points):
        if low.kept >= QUANTILE > high.kept:
            return 1.0 / (low.part + (high.part - low.part) * (low.kept - QUANTILE) / (low.kept - high.kept))
    return None


def by_part(checked: Checked) -> float:
    return checked.part
