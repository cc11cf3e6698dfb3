"""The part `exactness` of the bench `gpu`: whether requests have the same tokens in company and with drafts as alone,
in either mode of numerics, and what the exact one costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from covey.errors import CoveyError
from covey.runtime.lanes import Lanes, Pass
from covey.types import Ints, JsonDict
from loadtest.bench.gpu_rig import BLOCK_SIZE, OFF, Rig
from loadtest.bench.gpu_timing import milliseconds, over, queued
from loadtest.bench.policies import fixed
from loadtest.bench.work import Ask

FAST, INVARIANT = "fast", "invariant"
TEMPERATURES = (0.0, 1.0)
DEPTH = 3
REQUESTS, REQUESTS_OFF_GPU = 24, 4
PROMPT, OUTPUT = (32, 600), (48, 64)
PROMPT_OFF_GPU, OUTPUT_OFF_GPU = (8, 24), (6, 8)


@dataclass(frozen=True)
class Shape:
    """Of a pass: each row's last tokens at a context."""

    rows: int
    tokens: int
    context: int

    @property
    def name(self) -> str:
        return f"{self.rows} x {self.tokens} at {self.context}"


SHAPES = (
    Shape(1, 1, 512),
    Shape(1, 1, 3968),
    Shape(16, 1, 512),
    Shape(64, 1, 512),
    Shape(64, 4, 512),
    Shape(1, 1000, 1000),
)
SHAPES_OFF_GPU = (Shape(1, 1, 16), Shape(2, 3, 16))


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
    """On the device, one pass after the other."""
    works = {shape.name: _work(rig, shape, model) for shape in (SHAPES if rig.on_gpu else SHAPES_OFF_GPU)}
    return {name: milliseconds(queued(lambda w=work: model.forward(w), rig.device)) for name, work in works.items()}


def _work(rig: Rig, shape: Shape, model: Any) -> Pass:
    """Kept nowhere, with keys in places of their own."""
    size, blocks = shape.rows * shape.tokens, -(-shape.context // BLOCK_SIZE)
    ids = np.random.default_rng(rig.session.wanted.seed).permutation(model.blocks)[: shape.rows * blocks]
    lanes = Lanes(
        np.arange(shape.rows + 1, dtype=np.int32) * np.int32(shape.tokens),
        np.full(shape.rows, shape.context, np.int32),
        ids.reshape(shape.rows, blocks).astype(np.int32),
    )
    at: Ints = np.tile(np.arange(shape.context - shape.tokens, shape.context, dtype=np.int32), shape.rows)
    tokens = np.arange(size, dtype=np.int32) % model.vocab_size
    return Pass(tokens, at, np.full(size, model.nowhere, np.int32), lanes, lanes.offsets[1:] - 1)


def _texts(rig: Rig, target: Any, numerics: str, temperature: float) -> JsonDict:
    """How many of the requests have other tokens than alone: in company, and in company with drafts."""
    if rig.on_gpu:
        asks = rig.asks(REQUESTS, prompt=PROMPT, output=OUTPUT, seed=9, temperature=temperature)
    else:
        asks = rig.asks(REQUESTS_OFF_GPU, prompt=PROMPT_OFF_GPU, output=OUTPUT_OFF_GPU, seed=9, temperature=temperature)
    alone = _answers(rig, target, OFF, asks, 1, f"{numerics} {temperature} alone")
    changed: dict[str, int] = {}
    for label, policy in (("in company", OFF), ("drafted in company", fixed(DEPTH))):
        answers = _answers(rig, target, policy, asks, len(asks), f"{numerics} {temperature} {label}")
        changed[label] = sum(one != other for one, other in zip(alone, answers))
    return {"requests": len(asks), "changed": changed}


def _answers(
    rig: Rig, target: Any, policy: str, asks: Sequence[Ask], callers: int, tenant: str
) -> list[tuple[int, ...]]:
    engine = rig.engine(policy, runner=rig.runner(run_ahead=rig.run_ahead, target=target))
    try:
        return [answer.tokens for answer in engine.run(asks, callers, tenant=tenant).answers]
    finally:
        engine.close()
