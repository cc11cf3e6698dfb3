"""The part of the bench `star` that asks whether a drafter is to be kept warm, as StarSD's Figure 6 does.

A bundled drafter in this process drafts after idle gaps of 0 to 100 ms, with 0 to 8 warm-up steps at the gap's end:
drafts of one token on a tag of its own, whose time is not counted. The gaps and steps are drawn in random order, so
that whatever else runs here meets all of them.

cold_over_warm   a level's time after gaps of 10 ms or more without warm-up steps, over that without a gap
keep_warm_gain   what the best number of warm-up steps saves of a level's time after such gaps: worth it from a tenth
                 on, for the steps are the drafter's time as well
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np
from rich.console import Console

from covey.drafters.neural import NeuralDrafter
from covey.profile import DrafterSettings
from covey.types import DraftWork, JsonDict, Open, Sampling
from loadtest.bench import report
from loadtest.bench.session import QUICK, Session

KEYS = ("cold_over_warm", "keep_warm_gain")
DRAFTER = "draft_general"
GAPS_MS = (0, 5, 10, 20, 30, 50, 100)
STEPS = (0, 1, 2, 4, 8)
LEAST_MS = 10
DEPTH, PROMPT = 4, 64
WORTH = 0.1


@dataclass
class Measured:
    """Milliseconds of a level by gap and warm-up steps; one more for each turn."""

    levels: dict[tuple[int, int], list[float]] = field(default_factory=dict)

    def summary(self) -> JsonDict:
        found = {key: median(values) for key, values in self.levels.items()}
        if (0, 0) not in found:
            return {"keep_warm": None, **dict.fromkeys(KEYS)}
        idle = {
            steps: median([each for gap in GAPS_MS if gap >= LEAST_MS for each in self.levels[gap, steps]])
            for steps in STEPS
        }
        gain = 1 - min(idle.values()) / idle[0]
        return {
            "keep_warm": {str(steps): {str(gap): found[gap, steps] for gap in GAPS_MS} for steps in STEPS},
            "cold_over_warm": idle[0] / found[0, 0],
            "keep_warm_gain": gain,
            "keep_warm_pays": gain >= WORTH,
        }


def run(session: Session, measured: Measured) -> None:
    turns = 2 if session.wanted.size == QUICK else 40
    folder = session.wanted.options().repository_folder() / DRAFTER / "1"
    import torch

    torch.set_num_threads(1)  # as in a drafter's process
    drafter = NeuralDrafter.load(folder, DrafterSettings(kv_blocks=64), name=DRAFTER, depth=DEPTH)
    drafter.warm_up()
    draft = Drafts(drafter.draft)
    rng = np.random.default_rng(session.wanted.seed)
    cells = [(gap, steps) for gap in GAPS_MS for steps in STEPS]
    for _ in session.steps([f"idle gaps, turn {turn + 1}" for turn in range(turns)]):
        for index in rng.permutation(len(cells)).tolist():
            gap, steps = cells[index]
            draft.warm()  # of the other text, so that the one that counts is fetched anew in every cell
            time.sleep(gap / 1000)
            for _ in range(steps):
                draft.warm()
            measured.levels.setdefault((gap, steps), []).append(1000 * draft.work(DEPTH) / DEPTH)
        if session.out_of_time():
            session.interrupted = True
            break


class Drafts:
    """One text that is drafted for again and again, and one whose drafts count for nothing."""

    def __init__(self, draft: Callable[[DraftWork], object]) -> None:
        self._draft = draft
        prompt = np.arange(3, 3 + PROMPT, dtype=np.int32)
        self._works = [self._of(tag, prompt) for tag in (1, 2)]
        for work in self._works:
            draft(replace(work, opens=(Open(int(work.tags[0]), prompt, PROMPT, Sampling()),)))

    def work(self, depth: int) -> float:
        """Seconds that it took."""
        started = time.perf_counter()
        self._draft(replace(self._works[0], depth=np.full(1, depth, np.int32)))
        return time.perf_counter() - started

    def warm(self) -> None:
        self._draft(self._works[1])

    @staticmethod
    def _of(tag: int, prompt: np.typing.NDArray[np.int32]) -> DraftWork:
        one = np.ones(1, np.int32)
        return DraftWork(
            tags=one * tag,
            keep=one * len(prompt),
            offsets=np.zeros(2, np.int32),
            tokens=np.zeros(0, np.int32),
            depth=one,
            width=one,
            rounds=one,
            origin=1 << 32,
        )


def lines(result: JsonDict) -> dict[str, list[tuple[float, float]]]:
    """Of the picture: a level's time by gap, one line for each number of warm-up steps."""
    return {
        f"{steps} warm-up steps": [(float(gap), value) for gap, value in by_gap.items()]
        for steps, by_gap in (result.get("keep_warm") or {}).items()
    }


def show(result: JsonDict, console: Console) -> None:
    found = result.get("keep_warm")
    if found:
        rows = [[steps, *(report.number(value, 3) for value in by_gap.values())] for steps, by_gap in found.items()]
        columns = ("warm-up steps", *(f"gap {gap} ms" for gap in GAPS_MS))
        console.print(report.table("A level of a bundled drafter, ms", columns, rows))
