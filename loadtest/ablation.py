"""What parts of the policy `covey` gain, in virtual time: `python -m loadtest.ablation SEEDS PART...`.

Every case is played with all parts and without each, on the same draws; the figure is the time without over the time
with, the geometric mean over cases and seeds with what holds it at 95 %. Nothing here is hardware.

serving    the emulated 7B pair under 25 requests a second, nothing learnt before: mean latency
drift      acceptance that falls and rises, or drafting that is dear for a while: time over the oracle's
rough      the same on a device whose passes take up to a tenth more or less than any curve says, by their shape, and a
           fifth longer in the first round at another depth: time per token
changes    the first round at another depth takes half as long again: time per token
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import random
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import accumulate
from statistics import fmean, stdev
from typing import Any

import numpy as np

from covey.bandits.length import Outcome
from covey.planner import change_cost, policies, residuals
from covey.planner.switching import SwitchCosts
from covey_client.costs.surface import Surface
from loadtest.bench import loads
from loadtest.bench.emulated_pairs import PAIRS, requests
from loadtest.bench.emulated_serving import play
from loadtest.simulation import replay

DEPTH, MAX_ROWS, NOISE = 5, 64, 0.08
RATES, DEAR = (
    ((1500, 0.8, 1.0), (2000, 0.3, 1.0), (1500, 0.8, 1.0)),
    ((1500, 0.8, 1.0), (1500, 0.8, 4.0), (1500, 0.8, 1.0)),
)
CASES: dict[str, Sequence[tuple[int, Any]]] = {
    "serving": ((25, None),),
    "drift": ((16, RATES), (16, DEAR)),
    "rough": ((4, RATES), (32, RATES)),
    "changes": ((1, RATES), (16, RATES)),
}
CHANGE = {"rough": 0.2, "changes": 0.5}  # of a pass
PARTS: dict[str, Sequence[tuple[Any, str, Any]]] = {
    "residuals": [(residuals.Residuals, "factors", lambda self, _rows: np.ones(self._mean.shape[1]))],
    "changes": [
        (change_cost.ChangeCost, "seen", lambda *_: True),
        (change_cost.ChangeCost, "dear", lambda *_: False),
        (change_cost.ChangeCost, "price", lambda *_: 0.0),
    ],
}


@contextlib.contextmanager
def without(parts: Sequence[str]) -> Iterator[None]:
    """The policy lacks these parts, in this process."""
    patches = [patch for part in parts for patch in PARTS[part]]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in patches]
    for owner, name, other in patches:
        setattr(owner, name, other)
    try:
        yield
    finally:
        for owner, name, own in before:
            setattr(owner, name, own)


class Changing(replay.World):
    """A world in which the first round at another depth takes longer, by this part of its pass."""

    more = 0.0

    def play(self, rows: int, depth: int, lag: int, previous: int) -> Outcome:
        played = super().play(rows, depth, lag, previous)
        more = self.more * self._environment.costs.verify(rows, rows * (depth + 1)) if depth != previous else 0.0
        return replace(played, seconds=played.seconds + more, verify_seconds=played.verify_seconds + more)


@functools.cache
def device() -> replay.Costs:
    table, name = PAIRS[0].table, PAIRS[0].drafters[0]
    overhead = Surface((1, rows, seconds) for rows, seconds in table.overhead)
    return replay.Costs(
        verify=functools.cache(Surface(table.verify)),
        draft=functools.cache(Surface(table.draft[name])),
        overhead=functools.cache(lambda rows: overhead(1, rows)),
        switch=functools.cache(Surface(table.switch[name])),
    )


def rough(seed: int) -> replay.Costs:
    @functools.cache
    def verify(rows: int, tokens: int) -> float:
        return device().verify(rows, tokens) * (1.0 + random.Random(f"{seed} {rows} {tokens}").uniform(-0.1, 0.1))

    return replace(device(), verify=verify)


def seconds(kind: str, rows: int, phases: Any, seed: int, parts: Sequence[str]) -> float:
    """What the case takes without these parts."""
    with without(parts):
        if kind == "serving":
            return play(PAIRS[0], "covey", loads.poisson(rows, 120, seed), requests(PAIRS[0], 120, seed), seed).latency
        starts = [0, *accumulate(rounds for rounds, _, _ in phases)]
        rates = tuple((start, (rate,) * DEPTH) for start, (_, rate, _) in zip(starts, phases))
        dearness = tuple((start, dear) for start, (_, _, dear) in zip(starts, phases))
        costs = rough(seed) if kind == "rough" else device()
        environment = replay.Environment(costs, rates, NOISE, dearness=dearness)
        world, choices = np.random.default_rng(seed).spawn(2)
        made = policies.make("covey", max_depth=DEPTH, max_rows=MAX_ROWS, rng=choices, switch_costs=SwitchCosts())
        own, Changing.more = replay.World, CHANGE.get(kind, 0.0)
        replay.World = Changing  # type: ignore[misc]
        try:
            played = replay.replay(made, environment, [rows] * starts[-1], world)
        finally:
            replay.World = own  # type: ignore[misc]
        return 1.0 / played.speed if Changing.more else 1.0 / played.efficiency


def main() -> None:
    seeds, wanted = int(sys.argv[1]), [tuple(part.split("+")) for part in sys.argv[2:]]
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for kind, cases in CASES.items():
            found: dict[tuple[str, ...], list[float]] = {}
            jobs = {
                (case, seed, parts): pool.submit(seconds, kind, *cases[case], seed, parts)
                for case in range(len(cases))
                for seed in range(seeds)
                for parts in [(), *wanted]
            }
            for (case, seed, parts), job in jobs.items():
                if parts:
                    found.setdefault(parts, []).append(math.log(job.result() / jobs[case, seed, ()].result()))
            for parts, logs in found.items():
                middle, reach = fmean(logs), 1.96 * stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else 0.0
                ratio = f"{math.exp(middle):.3f} ({math.exp(middle - reach):.3f} to {math.exp(middle + reach):.3f})"
                print(f"{kind:8} without {'+'.join(parts):20} {ratio}, {len(logs)} runs", flush=True)


if __name__ == "__main__":
    main()
