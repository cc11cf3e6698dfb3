"""Times single passes of Covey's models on the runtimes that serve them, without a scheduler, sampling or another
thread's work: `python -m loadtest.bench.peers.timed`, asked over a pipe."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from covey.contracts import profile
from covey.contracts.types import JsonDict
from covey.drafters.opening import open_drafter
from covey.runtimes.compute import Compute
from covey.target.runner import open_target, typed
from loadtest.bench.passes import PassCase
from loadtest.bench.peers.scripts.answering import answer

BLOCKS = 512
CONTEXT = 56  # tokens that a row has behind it: a short prompt and half of an answer
REPEATS = 7
PASS, FAST, LEVEL = "pass", "fast", "level"


class Timed:
    """Owns the target in the mode that it is served in and in mode fast, and the drafter."""

    def load(self, target: str, drafter: str, profile_name: str) -> JsonDict:
        settings = profile.load(profile_name)
        served = replace(typed(target, settings.target), kv_blocks=BLOCKS)
        budget, drafts = settings.scheduler.token_budget, replace(settings.drafter, kv_blocks=BLOCKS)
        self._models: dict[str, tuple[Compute, Any]] = {
            PASS: open_target(target, served, budget, 0, 0),
            FAST: open_target(target, replace(served, numerics="fast"), budget, 0, 0),
            LEVEL: (Compute(), open_drafter(Path(drafter), drafts, 0).model),
        }
        return {"threads": settings.target.threads or os.cpu_count() or 1}

    def passes(self, shapes: list[list[int]], kinds: list[str]) -> JsonDict:
        """Return milliseconds by kind and shape, which is rows and tokens of each; of a level always one token of each
        row. All take turns."""
        seconds: dict[tuple[str, int], list[float]] = {(kind, at): [] for kind in kinds for at in range(len(shapes))}
        for turn in range(1 + REPEATS):
            for (kind, at), taken in seconds.items():
                rows, tokens = shapes[at]
                compute, model = self._models[kind]
                passed = compute.run(_pass, model, PassCase(rows, CONTEXT, 1 if kind == LEVEL else tokens))
                if turn:  # the first of each compiles what it needs
                    taken.append(passed)
        return {kind: [1000 * median(seconds[kind, at]) for at in range(len(shapes))] for kind in kinds}


def _pass(model: Any, case: PassCase) -> float:
    work = case.work(model.blocks, case.rows, model.padding_slot, model.block_size)
    started = time.perf_counter()
    model.forward(work)
    return time.perf_counter() - started


if __name__ == "__main__":
    timed = Timed()
    answer({"load": timed.load, "passes": timed.passes})
