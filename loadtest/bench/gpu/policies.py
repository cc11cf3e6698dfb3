"""Measures the part `speculation` of the bench `gpu`: policies against fixed depths in a closed loop, over engines of
this process, at temperature 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial

from covey.contracts.types import JsonDict
from loadtest.bench.gpu.rig import Rig
from loadtest.bench.policies import ADAPTIVE, DEPTHS, LEARNERS, OFF, PolicyRuns, fixed, take_turns
from loadtest.bench.work import Ask, Competitor

REQUESTS = {1: 3, 4: 10, 16: 40, 64: 144, 128: 256}  # by concurrency
REQUESTS_OFF_GPU = {1: 1, 4: 4}
LENGTHS, LENGTHS_OFF_GPU = ((64, 256), (64, 192)), ((8, 16), (6, 12))  # of prompts and of answers
REPETITIONS = 4


def speculation(rig: Rig, found: JsonDict) -> None:
    session, measured = rig.session, PolicyRuns()
    requests = REQUESTS if rig.on_gpu else REQUESTS_OFF_GPU
    repetitions = session.repetitions(REPETITIONS, quick=2)
    policies = (OFF, fixed(2), ADAPTIVE) if rig.small else (OFF, *map(fixed, DEPTHS), *LEARNERS)
    with ExitStack() as stack:
        entrants = []
        for policy in policies:
            entrants.append(rig.engine(policy))
            stack.callback(entrants[-1].close)
        try:
            _warm_up(rig, entrants, requests)
            take_turns(session, measured.runs, entrants, requests, partial(asks, rig), repetitions)
        finally:
            found |= measured.summary()


def asks(rig: Rig, count: int, seed: int) -> list[Ask]:
    """Return this many requests, the same for every entrant."""
    prompt, output = LENGTHS if rig.on_gpu else LENGTHS_OFF_GPU
    return rig.asks(count, prompt=prompt, output=output, seed=seed)


def _warm_up(rig: Rig, entrants: Sequence[Competitor], requests: Mapping[int, int]) -> None:
    """Record every pass with the entrants that learn nothing; then the others learn the cost of a round."""
    steps = [(f"warming up: {each.name} at {callers}", (each, callers)) for each in entrants for callers in requests]
    for entrant, callers in rig.session.each(steps):
        count = 2 * callers if entrant.name in LEARNERS and rig.on_gpu else callers
        entrant.run(asks(rig, count, 0), callers, tenant=f"warm-up {entrant.name} {callers}")
