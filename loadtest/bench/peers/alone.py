"""Covey's engine and target alone in a process: `python -m loadtest.bench.peers.alone`, asked over a pipe. Nothing is
computed ahead: there is no way to and fro to hide. Single passes of the same model are timed apart.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from covey.contracts import profile
from covey.contracts.types import JsonDict
from covey.requests.rounds import RoundRecord
from covey.target.runner import TargetRunner, open_target, typed
from loadtest.bench.in_process import InProcess
from loadtest.bench.passes import PassCase
from loadtest.bench.peers.scripts.answering import answer
from loadtest.bench.work import Ask

BLOCKS = 512
CONTEXT = 56  # tokens that a row has behind it in a single pass: a short prompt and half of an answer
REPEATS = 7


class Alone:
    """Owns the engine and the target."""

    def __init__(self) -> None:
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
        budget = settings.scheduler.token_budget
        runner = TargetRunner.load(target, wanted, token_budget=budget, name="target")
        self._engine = InProcess("alone", replace(settings, target=wanted), runner, observe=self._records.append)
        self._compute, self._model = open_target(target, typed(target, wanted), budget, 0, 0)
        info = self._engine.target
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
        asks = [Ask("", tokens, temperature, seed + row, ids=tuple(prompt)) for row, prompt in enumerate(prompts)]
        run = self._engine.run(asks, len(asks))
        plain = [record for record in self._records if record.decoding == len(prompts) and not record.prefill_tokens]
        return {
            "tokens": [list(each.tokens) for each in run.answers],
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
