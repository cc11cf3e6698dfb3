"""Measures the part `exactness` of the bench `gpu`: whether requests have the same tokens in company and with drafts as
alone, in either mode of numerics, and what the exact one costs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

from covey.contracts.errors import CoveyError
from covey.contracts.types import JsonDict
from loadtest.bench.gpu.rig import OFF, Rig
from loadtest.bench.gpu.timing import milliseconds, over, queued
from loadtest.bench.passes import PassCase
from loadtest.bench.policies import fixed
from loadtest.bench.work import Ask

FAST, INVARIANT = "fast", "invariant"
TEMPERATURES = (0.0, 1.0)
DEPTH = 3
ASKED, ASKED_OFF_GPU = (24, (32, 600), (48, 64)), (4, (8, 24), (6, 8))  # requests, lengths of prompts and of answers

CASES = (
    PassCase(1, 512),
    PassCase(1, 3968),
    PassCase(16, 512),
    PassCase(64, 512),
    PassCase(64, 512, 4),
    PassCase(1, 1000, 1000),
)
CASES_OFF_GPU = (PassCase(1, 16), PassCase(2, 16, 3))


def exactness(rig: Rig, found: JsonDict) -> None:
    for numerics in (FAST, INVARIANT):
        try:
            target = rig.loaded().target if numerics == FAST else rig.target(numerics)
        except CoveyError as error:
            found[numerics] = {"absent": str(error)}
            continue
        found[numerics] = {"pass_ms": _passes(rig, target), "texts": {}}
        for temperature in TEMPERATURES:
            found[numerics]["texts"][str(temperature)] = _texts(rig, target, numerics, temperature)
    exact = found[INVARIANT].get("pass_ms")
    if exact is not None:
        found[INVARIANT]["over_fast"] = {name: over(exact[name], found[FAST]["pass_ms"][name]) for name in exact}


def _passes(rig: Rig, model: Any) -> JsonDict:
    """Return the milliseconds of passes on the device, one after the other."""
    cases, seed = CASES if rig.on_gpu else CASES_OFF_GPU, rig.session.wanted.seed
    works = {case.name: case.work(model.blocks, seed, model.padding_slot) for case in cases}
    return {name: milliseconds(queued(lambda w=work: model.forward(w), rig.device)) for name, work in works.items()}


def _texts(rig: Rig, target: Any, numerics: str, temperature: float) -> JsonDict:
    """Return how many of the requests have other tokens than alone: in company, and in company with drafts."""
    count, prompt, output = ASKED if rig.on_gpu else ASKED_OFF_GPU
    asks = rig.asks(count, prompt=prompt, output=output, seed=9, temperature=temperature)
    alone = _answers(rig, target, OFF, asks, 1, f"{numerics} {temperature} alone")
    changed: dict[str, int] = {}
    for label, policy in (("in company", OFF), ("drafted in company", fixed(DEPTH))):
        answers = _answers(rig, target, policy, asks, len(asks), f"{numerics} {temperature} {label}")
        changed[label] = sum(one != other for one, other in zip(alone, answers))
    return {"requests": len(asks), "changed": changed}


def _answers(
    rig: Rig, target: Any, policy: str, asks: Sequence[Ask], callers: int, tenant: str
) -> list[tuple[int, ...]]:
    with closing(rig.engine(policy, runner=rig.runner(target))) as engine:
        return [answer.tokens for answer in engine.run(asks, callers, tenant=tenant).answers]
