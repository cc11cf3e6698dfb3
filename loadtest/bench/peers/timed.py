"""Single passes of Covey's models, without a scheduler, sampling or another thread: `python -m
loadtest.bench.peers.timed`, asked over a pipe.
"""

from __future__ import annotations

import os
import time
from statistics import median

import torch

from covey import profile
from covey.models.opening import Model, open_model
from covey.types import JsonDict
from loadtest.bench.passes import BLOCK_SIZE, Case
from loadtest.bench.peers.scripts.answering import answer

BLOCKS = 512
CONTEXT = 56  # tokens that a row has behind it: a short prompt and half of an answer
REPEATS = 7
PASS, FAST, LEVEL = "pass", "fast", "level"


class Timed:
    """Owns the target in the mode that it is served in and in mode fast, and the drafter."""

    def load(self, target: str, drafter: str, profile_name: str) -> JsonDict:
        settings = profile.load(profile_name)
        threads = settings.target.threads or os.cpu_count() or 1
        torch.set_num_threads(threads)

        def opened(folder: str, numerics: str, dtype: str) -> Model:
            return open_model(
                folder,
                dtype=dtype,
                device="cpu",
                blocks=BLOCKS,
                block_size=BLOCK_SIZE,
                numerics=numerics,
                max_pass_tokens=settings.scheduler.token_budget,
            )

        dtype = settings.target.dtype
        self._models = {
            PASS: opened(target, settings.target.numerics, dtype),
            FAST: opened(target, "fast", dtype),
            LEVEL: opened(drafter, "fast", settings.drafter.dtype),
        }
        return {"threads": threads}

    def passes(self, shapes: list[list[int]], kinds: list[str]) -> JsonDict:
        """Milliseconds by kind and shape, which is rows and tokens of each; of a level always one token of each row.
        All take turns."""
        seconds: dict[tuple[str, int], list[float]] = {(kind, at): [] for kind in kinds for at in range(len(shapes))}
        for turn in range(1 + REPEATS):
            for (kind, at), taken in seconds.items():
                rows, tokens = shapes[at]
                passed = self._pass(self._models[kind], Case(rows, CONTEXT, 1 if kind == LEVEL else tokens))
                if turn:  # the first of each compiles what it needs
                    taken.append(passed)
        return {kind: [1000 * median(seconds[kind, at]) for at in range(len(shapes))] for kind in kinds}

    def _pass(self, model: Model, case: Case) -> float:
        work = case.work(model.blocks, case.rows, getattr(model, "padding_slot", -1))
        started = time.perf_counter()
        model.forward(work)
        return time.perf_counter() - started


if __name__ == "__main__":
    timed = Timed()
    answer({"load": timed.load, "passes": timed.passes})
