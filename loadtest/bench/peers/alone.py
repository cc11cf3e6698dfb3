"""Covey's engine and target alone in a process, of which one thread computes: `python -m loadtest.bench.peers.alone`,
asked over a pipe. Nothing is computed ahead: there is no way to and fro to hide. Single passes of the same model are
timed apart.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from statistics import median
from typing import Any

import numpy as np

from covey.contracts import profile
from covey.contracts.clock import RealClock
from covey.contracts.types import JsonDict, Progress, Request, Sampling
from covey.loop.configuration import EngineHooks
from covey.loop.engine import Engine
from covey.planner.build import build
from covey.requests.rounds import RoundRecord
from covey.requests.scheduler import Scheduler
from covey.target.runner import TargetRunner, open_target, typed
from loadtest.bench.passes import PassCase
from loadtest.bench.peers.scripts.answering import answer

BLOCKS = 512
CONTEXT = 56  # tokens that a row has behind it in a single pass: a short prompt and half of an answer
REPEATS = 7


class TokenSink:
    """Takes the engine's progress: tokens by request."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.errors: list[Exception] = []

    def publish(self, batch: Sequence[Progress]) -> None:
        for item in batch:
            self.tokens.setdefault(item.key, []).extend(item.tokens.tolist())
            if item.error is not None:
                self.errors.append(item.error)


class Alone:
    """Owns the engine and the target."""

    def __init__(self) -> None:
        self._keys = count(1)
        self._records: list[RoundRecord] = []

    def load(self, target: str, profile_name: str, dtype: str = "") -> JsonDict:
        """Load the target in a folder under a profile's settings."""
        settings = profile.load(profile_name)
        wanted = replace(
            settings.target,
            dtype=dtype or settings.target.dtype,
            device="cpu",
            kv_blocks=BLOCKS,
            prefix_reuse=False,
            run_ahead=False,
        )
        limits = settings.scheduler
        runner = TargetRunner.load(target, wanted, token_budget=limits.token_budget, name="target")
        info = runner.info()
        self._sink = TokenSink()
        scheduler = Scheduler.of(limits, info.block_size)
        planner = build(settings.speculation, (), max_rows=limits.max_running)
        self._engine = Engine(
            runner, scheduler, planner, self._sink, RealClock(), hooks=EngineHooks(observe=self._records.append)
        )
        self._compute, self._model = open_target(target, typed(target, wanted), limits.token_budget, 0, 0)
        return {
            "numerics": info.numerics,
            "dtype": info.dtype,
            "vocabulary": info.vocab_size,
            "threads": wanted.threads or os.cpu_count() or 1,
        }

    def generate(
        self, prompts: list[list[int]], tokens: int, temperature: float, seed: int, depth: int = 0
    ) -> JsonDict:
        """Answer all prompts at once, plainly. `pass_ms` is the target's own time of a round in which all rows decode,
        `round_ms` the whole round's; medians, null where there was no such round."""
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

    def passes(self, rows: list[int]) -> JsonDict:
        """Return the milliseconds of a pass of one token of each of so many rows. All take turns."""
        seconds: list[list[float]] = [[] for _ in rows]
        for turn in range(1 + REPEATS):
            for each, taken in zip(rows, seconds):
                passed = self._compute.run(_pass, self._model, PassCase(each, CONTEXT))
                if turn:  # the first of each compiles what it needs
                    taken.append(passed)
        return {"ms": [1000 * median(taken) for taken in seconds]}


def _pass(model: Any, case: PassCase) -> float:
    work = case.work(model.blocks, case.rows, model.padding_slot, model.block_size)
    started = time.perf_counter()
    model.forward(work)
    return time.perf_counter() - started


def _milliseconds(seconds: Sequence[float]) -> float | None:
    return 1000 * median(seconds) if seconds else None


def _whole(record: RoundRecord) -> float:
    return record.plan_seconds + record.draft_seconds + record.verify_seconds + record.commit_seconds


if __name__ == "__main__":
    alone = Alone()
    answer({"load": alone.load, "generate": alone.generate, "passes": alone.passes})
