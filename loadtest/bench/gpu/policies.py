"""The part `speculation` of the bench `gpu`: the bench `load` with engines of this process, at temperature 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from covey.types import JsonDict
from loadtest.bench import workload
from loadtest.bench.gpu.rig import Rig
from loadtest.bench.policies import COVEY, DEPTHS, LEARNERS, OFF, Measured, fixed
from loadtest.bench.statistics import best_over
from loadtest.bench.work import Ask, Competitor

REQUESTS = {1: 3, 4: 10, 16: 40, 64: 144, 128: 256}  # by concurrency
REQUESTS_OFF_GPU = {1: 1, 4: 4}
PROMPT, OUTPUT = (64, 256), (64, 192)
PROMPT_OFF_GPU, OUTPUT_OFF_GPU = (8, 16), (6, 12)
REPETITIONS, FULL_REPETITIONS = 4, 10


def speculation(rig: Rig, found: JsonDict) -> None:
    session, measured = rig.session, Measured()
    requests = REQUESTS if rig.on_gpu else REQUESTS_OFF_GPU
    repetitions = session.repetitions(REPETITIONS, FULL_REPETITIONS, quick=2)
    policies = (OFF, fixed(2), COVEY) if rig.small else (OFF, *map(fixed, DEPTHS), *LEARNERS)
    with ExitStack() as stack:
        entrants = []
        for policy in policies:
            entrants.append(rig.engine(policy))
            stack.callback(entrants[-1].close)
        try:
            compare(rig, measured, entrants, requests, repetitions)
        finally:
            found |= summary(measured) | {"on_gpu": rig.on_gpu}
            target: Any = rig.loaded().target
            found["recordings"] = len(target.graphs) if rig.on_gpu else None


def compare(
    rig: Rig, measured: Measured, entrants: Sequence[Competitor], requests: Mapping[int, int], repetitions: int
) -> None:
    """All entrants in turns, so often; fewer times when time is up."""
    _warm_up(rig, entrants, requests)
    for repetition in range(repetitions):
        if repetition and rig.session.out_of_time():
            break
        _repetition(rig, measured, entrants, repetition, requests)


def asks(rig: Rig, count: int, seed: int) -> list[Ask]:
    """The same for every entrant."""
    if rig.on_gpu:
        return rig.asks(count, prompt=PROMPT, output=OUTPUT, seed=seed)
    return rig.asks(count, prompt=PROMPT_OFF_GPU, output=OUTPUT_OFF_GPU, seed=seed)


def summary(measured: Measured) -> JsonDict:
    """The keys of `load`, and what speculation brings at all. The best depth of `over off` is picked on other
    repetitions than it is compared on."""
    found = measured.summary()
    for concurrency, runs in measured.runs.items():
        point = found["points"][str(concurrency)]
        whole = min((len(done) for done in runs.values()), default=0)
        rates = {name: [run.rate for run in done[:whole]] for name, done in runs.items()}
        off = {OFF: rates[OFF]} if OFF in rates else {}
        depths = {name: values for name, values in rates.items() if name.startswith("fixed")}
        for key, chosen in (("best_fixed_over_off", depths), ("covey_over_off", {COVEY: rates.get(COVEY, [])})):
            best = best_over(chosen, off) if off and chosen else None
            point[key] = None if best is None else best.ratio
    return found


def _warm_up(rig: Rig, entrants: Sequence[Competitor], requests: Mapping[int, int]) -> None:
    """Every pass that the requests lead to is recorded, by those who learn nothing; then the others learn what a round
    costs."""
    steps = [(entrant, callers) for entrant in entrants for callers in requests]
    labels = [f"warming up: {entrant.name} at {callers}" for entrant, callers in steps]
    for (entrant, callers), _ in zip(steps, rig.session.steps(labels)):
        count = 2 * callers if entrant.name in LEARNERS and rig.on_gpu else callers
        entrant.run(asks(rig, count, 0), callers, tenant=f"warm-up {entrant.name} {callers}")


def _repetition(
    rig: Rig, measured: Measured, entrants: Sequence[Competitor], repetition: int, requests: Mapping[int, int]
) -> None:
    session = rig.session
    seed = session.wanted.seed * 1000 + repetition
    steps = [(c, entrant) for c in requests for entrant in workload.shuffled(entrants, seed, c)]
    labels = [f"repetition {repetition + 1}: {entrant.name} at {c}" for c, entrant in steps]
    for (concurrency, entrant), _ in zip(steps, session.steps(labels)):
        if repetition and session.out_of_time():
            return
        tenant = f"{repetition} {entrant.name} {concurrency}"
        done = entrant.run(asks(rig, requests[concurrency], seed), concurrency, tenant=tenant)
        measured.runs[concurrency][entrant.name].append(done)
