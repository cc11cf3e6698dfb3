"""Covey's target alone in a process, one thread of which computes: `python -m loadtest.bench.peers.alone`, asked over a
pipe. Beside whole requests it measures single passes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from statistics import median

import numpy as np
import torch

from covey import profile
from covey.clock import RealClock
from covey.engine import Engine
from covey.models.opening import Model, open_model
from covey.planner.build import build
from covey.profile import Profile
from covey.rounds import RoundRecord
from covey.scheduler import Scheduler
from covey.target.runner import TargetRunner
from covey.types import JsonDict, Progress, Request, Sampling
from loadtest.bench.passes import BLOCK_SIZE, Case
from loadtest.bench.peers.scripts.answering import answer

BLOCKS = 512
CONTEXT = 56  # tokens that a row of a single pass has behind it: a short prompt and half of an answer
REPEATS = 7


class Sink:
    """Where the engine's progress goes: tokens by request."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.errors: list[Exception] = []

    def publish(self, batch: Sequence[Progress]) -> None:
        for item in batch:
            self.tokens.setdefault(item.key, []).extend(item.tokens.tolist())
            if item.error is not None:
                self.errors.append(item.error)


class Alone:
    """Owns the model and an engine over it. `numerics` is the mode that passes are computed in."""

    def __init__(self) -> None:
        self._keys = count(1)
        self._records: list[RoundRecord] = []
        self._drafter: Model | None = None

    def load(self, target: str, profile_name: str, numerics: str, dtype: str = "", drafter: str = "") -> JsonDict:
        """The target in a folder under a profile's settings; with a `drafter`'s folder its levels can be timed too."""
        settings = profile.load(profile_name)
        self._threads = settings.target.threads or os.cpu_count() or 1
        torch.set_num_threads(self._threads)
        self._target = replace(settings.target, numerics=numerics, dtype=dtype or settings.target.dtype, device="cpu")
        self._model = self._opened(settings, target, numerics)
        self._drafter = self._opened(settings, drafter, "fast") if drafter else None
        runner = TargetRunner(
            self._model, blocks=BLOCKS, block_size=self._model.block_size, reuse=False, name="target", folder=target
        )
        self._sink = Sink()
        limits = settings.scheduler
        scheduler = Scheduler(
            max_running=limits.max_running,
            max_waiting=limits.max_waiting,
            token_budget=limits.token_budget,
            growth_tokens=limits.growth_tokens,
            block_size=self._model.block_size,
        )
        planner = build(settings.speculation, (), max_rows=limits.max_running)
        self._engine = Engine(runner, scheduler, planner, self._sink, RealClock(), observe=self._records.append)
        return {
            "numerics": self._model.numerics,
            "dtype": self._model.dtype,
            "threads": self._threads,
            "vocabulary": self._model.vocab_size,
        }

    def generate(
        self, prompts: list[list[int]], tokens: int, temperature: float, seed: int, depth: int = 0
    ) -> JsonDict:
        """All at once, plainly. `pass_ms` is the target's own time of a round in which all rows decode, `round_ms`
        the whole round's; medians, null where there was no such round."""
        assert not depth, "nobody drafts here"
        self._records.clear()
        keys = [next(self._keys) for _ in prompts]
        for row, (key, prompt) in enumerate(zip(keys, prompts)):
            ids = np.asarray(prompt, np.int32)
            sampling = Sampling(temperature, seed=seed + row)
            self._engine.submit(Request(key, ids, tokens, sampling, len(ids), speculation="off"))
        while self._engine.round():
            pass
        if self._sink.errors:
            raise self._sink.errors.pop()
        plain = [record for record in self._records if record.decoding == len(prompts) and not record.prefill_tokens]
        return {
            "tokens": [self._sink.tokens.pop(key) for key in keys],
            "pass_ms": _milliseconds([record.pass_seconds for record in plain]),
            "round_ms": _milliseconds([_whole(record) for record in plain]),
        }

    def passes(self, shapes: list[list[int]]) -> JsonDict:
        """Milliseconds of the model's own pass, without sampling, by shape: rows, and tokens of each. Of a level of
        the drafter likewise."""
        found = {"pass_ms": [self._passed(self._model, *shape) for shape in shapes]}
        if self._drafter is not None:
            found["level_ms"] = [self._passed(self._drafter, rows, 1) for rows, _ in shapes]
        return found

    def _opened(self, settings: Profile, folder: str, numerics: str) -> Model:
        return open_model(
            folder,
            dtype=self._target.dtype,
            device="cpu",
            blocks=BLOCKS,
            block_size=BLOCK_SIZE,
            numerics=numerics,
            max_pass_tokens=settings.scheduler.token_budget,
        )

    def _passed(self, model: Model, rows: int, tokens: int) -> float:
        work = Case(rows, CONTEXT, tokens).work(model.blocks, rows, getattr(model, "padding_slot", -1))
        model.forward(work)  # the first of a kind compiles what it needs
        seconds = []
        for _ in range(REPEATS):
            started = time.perf_counter()
            model.forward(work)
            seconds.append(time.perf_counter() - started)
        return 1000 * median(seconds)


def _milliseconds(seconds: Sequence[float]) -> float | None:
    return 1000 * median(seconds) if seconds else None


def _whole(record: RoundRecord) -> float:
    return record.plan_seconds + record.draft_seconds + record.verify_seconds + record.commit_seconds


if __name__ == "__main__":
    alone = Alone()
    answer({"load": alone.load, "generate": alone.generate, "passes": alone.passes})
