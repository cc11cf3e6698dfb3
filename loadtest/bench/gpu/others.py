"""The part `others` of the bench `gpu`: Covey in process beside transformers, on the same weights and requests.

All outputs are of one length, which is kinder to batches that wait for their longest than traffic is. Ours and
`generate` take turns; continuous batching, whose threads and memory stay while it is ready, runs after them.
"""

from __future__ import annotations

import inspect
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch

from covey.errors import CoveyError
from covey.types import JsonDict
from loadtest.bench import report, workload
from loadtest.bench.gpu.rig import OFF, Rig
from loadtest.bench.hugging_face import HuggingFace, Weights
from loadtest.bench.policies import COVEY
from loadtest.bench.statistics import Spread, median_ratio
from loadtest.bench.work import Answer, Ask, Competitor, Run

GENERATE, CONTINUOUS = "hf generate", "hf continuous batching"
REQUESTS, REQUESTS_OFF_GPU = {1: 2, 16: 32, 64: 128}, {1: 1, 2: 2}
LEAST_CONTINUOUS = 16  # callers
PROMPT, OUTPUT, OUTPUT_OFF_GPU = 128, 96, 6
REPETITIONS, FULL_REPETITIONS = 3, 7


def others(rig: Rig, found: JsonDict) -> None:
    requests = REQUESTS if rig.on_gpu else REQUESTS_OFF_GPU
    repetitions = rig.session.repetitions(REPETITIONS, FULL_REPETITIONS)
    measured = _Measured({c: defaultdict(list) for c in requests})
    with ExitStack() as stack:
        turns: list[Competitor] = [HuggingFace(GENERATE, Weights(rig.view(), None))]
        for policy in (OFF, COVEY):
            engine = rig.engine(policy)
            stack.callback(engine.close)
            turns.append(engine)
        for repetition in range(-1, repetitions):
            for concurrency, count in requests.items():
                for competitor in workload.shuffled(turns, repetition, concurrency):
                    measured.run(rig, competitor, concurrency, count, repetition)
            found |= measured.summary()
    for concurrency, count in requests.items():
        if concurrency >= LEAST_CONTINUOUS or not rig.on_gpu:
            with Continuous(Weights(rig.view(), None)) as competitor:  # it replaces its modules' attention
                for repetition in range(-1, repetitions):
                    measured.run(rig, competitor, concurrency, count, repetition)
    found |= measured.summary()


@dataclass
class _Measured:
    """Tokens a second by concurrency and competitor; and why those who failed are absent from then on."""

    rates: dict[int, dict[str, list[float]]]
    absent: dict[str, str] = field(default_factory=dict)

    def run(self, rig: Rig, competitor: Competitor, concurrency: int, count: int, repetition: int) -> None:
        """The requests of a repetition, the same for all; of repetition -1, which warms up, nothing is kept."""
        name, output = competitor.name, OUTPUT if rig.on_gpu else OUTPUT_OFF_GPU
        if name in self.absent:
            return
        seed = rig.session.wanted.seed * 1000 + repetition + 1
        asks = rig.asks(count, prompt=(PROMPT, PROMPT), output=(output, output), seed=seed)
        try:
            done = competitor.run(asks, concurrency, tenant=f"{repetition} {name} {concurrency}")
        except Exception as error:
            if name in (OFF, COVEY):
                raise
            self.absent[name] = f"{type(error).__name__}: {error}"[:300]
            return
        if repetition >= 0:
            self.rates[concurrency][name].append(done.rate)

    def summary(self) -> JsonDict:
        points = {str(concurrency): _point(by_name) for concurrency, by_name in self.rates.items()}
        return {"points": points, "absent": dict(self.absent)}


def _point(rates: Mapping[str, list[float]]) -> JsonDict:
    known = {name: list(rates.get(name, ())) for name in (OFF, COVEY, GENERATE, CONTINUOUS)}
    return {
        "tokens_per_second": {name: report.as_json(Spread.of(values)) for name, values in known.items()},
        "over": {
            f"{ours} over {other}": median_ratio(known[ours], known[other])
            for ours in (OFF, COVEY)
            for other in (GENERATE, CONTINUOUS)
        },
    }


class Continuous:
    """Competitor: transformers' continuous batching at one concurrency, while entered."""

    name = CONTINUOUS

    def __init__(self, weights: Weights) -> None:
        self._weights = weights

    def __enter__(self) -> Continuous:
        return self

    def __exit__(self, *_: object) -> None:
        destroy = getattr(self._weights.model, "destroy_cached_continuous_batching_manager", None)
        if destroy is not None:
            destroy()

    def run(self, asks: Sequence[Ask], concurrency: int, tenant: str = "") -> Run:  # noqa: ARG002 - it has no cache
        if self._weights.device.type != "cuda":
            raise CoveyError("continuous batching wants a GPU")
        started = time.perf_counter()
        tokens = self._generate(asks, concurrency)
        seconds = time.perf_counter() - started
        return Run(tuple(Answer(ids, seconds) for ids in tokens), seconds)

    def _generate(self, asks: Sequence[Ask], concurrency: int) -> list[tuple[int, ...]]:
        from transformers import ContinuousBatchingConfig, GenerationConfig

        length = asks[0].max_tokens
        settings = GenerationConfig(
            max_new_tokens=length, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, eos_token_id=-1, pad_token_id=0
        )
        generate = self._weights.model.generate_batch
        given: dict[str, Any] = {}
        if "persistent_manager" in inspect.signature(generate).parameters:
            given["persistent_manager"] = True  # what it makes ready is made in the first run, which does not count
        found = generate(
            inputs=[self._weights.prompt(ask) for ask in asks],
            generation_config=settings,
            continuous_batching_config=ContinuousBatchingConfig(
                max_requests_per_batch=concurrency, max_memory_percent=0.4
            ),
            max_new_tokens=length,
            **given,
        )
        torch.cuda.synchronize()
        tokens = [tuple(each.generated_tokens) for each in found.values()]
        if len(tokens) != len(asks) or any(len(each) != length for each in tokens):
            raise CoveyError(f"{len(tokens)} of {len(asks)} requests answered, or not to their length")
        return tokens
