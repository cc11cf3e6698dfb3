"""The bundled models: speculation never changes a token, whatever drafts, how deep, how wide and in whose company.

There is no tolerance at all, in whichever numerics mode the target came up.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from covey import profile, prompts
from covey.clock import RealClock
from covey.engine import Engine
from covey.planner.static import StaticPlanner
from covey.ports import Drafter
from covey.runtime.drafters import load_drafter
from covey.runtime.target import TargetRunner
from covey.scheduler import Scheduler
from covey.tokenization import load_tokenizer
from covey.types import Ints, Sampling
from tests.fakes import Collector, request
from tests.grids import pairwise, whole

MODELS = Path(__file__).resolve().parents[1] / "model_repository"
SAMPLINGS = {
    "greedy": Sampling(),
    "warm": Sampling(temperature=0.7, top_p=0.9),
    "hot": Sampling(temperature=1.0, top_p=0.95),
}
NEURAL = ("draft_general", "draft_code", "draft_math", "draft_translate", "draft_chat", "draft_summary")
GRID = {
    "drafter": [*NEURAL, "draft_ngram", "draft_suffix"],
    "depth": list(range(1, 9)),
    "width": [1, 2, 3, 4],
    "batch": [1, 8, 32],
    "sampling": list(SAMPLINGS),
}
SETTINGS = profile.load("demo-cpu")
BUDGET = 1024


@lru_cache(maxsize=1)
def target() -> TargetRunner:
    return TargetRunner.load(MODELS / "target" / "1", SETTINGS.target, token_budget=BUDGET, name="target")


@lru_cache(maxsize=16)
def drafter(name: str) -> Drafter:
    kind = name.removeprefix("draft_") if name not in NEURAL else "neural"
    return load_drafter(kind, MODELS / name / "1", MODELS / "target" / "1", SETTINGS, name=name)


@lru_cache(maxsize=1)
def texts() -> list[Ints]:
    """All bundled prompts, the domains taking turns."""
    tokenizer = load_tokenizer(MODELS / "target" / "1")
    assert tokenizer is not None
    turns = zip(*(prompts.load(domain) for domain in prompts.DOMAINS))
    return [np.asarray(tokenizer.encode(text).ids, np.int32) for turn in turns for text in turn]


def generate(
    numbers: list[int], sampling: str, count: int, batch: int, name: str = "", depth: int = 0, width: int = 1
) -> list[list[int]]:
    """The output of prompts by number; request n is seeded with n."""
    torch.set_num_threads(2)
    sink = Collector()
    scheduler = Scheduler(
        max_running=batch,
        max_waiting=4096,
        token_budget=BUDGET,
        growth_tokens=64,
        block_size=SETTINGS.target.block_size,
    )
    drafters = {name: drafter(name)} if name else {}
    planner = StaticPlanner(depth, width, tuple(drafters))
    engine = Engine(target(), scheduler, planner, sink, RealClock(), drafters=drafters, draft_deadline=60.0)
    for number in numbers:
        chosen = SAMPLINGS[sampling]
        seeded = Sampling(chosen.temperature, top_p=chosen.top_p, seed=number, end_ids=target().info().end_ids)
        engine.submit(request(number + 1, texts()[number % len(texts())], count, sampling=seeded))
    while engine.round():
        pass
    target().check()
    if depth:
        assert sum(item.drafted for item in sink.ended.values()) > 0, "nothing was drafted"
    return [sink.tokens[number + 1] for number in numbers]


@lru_cache(maxsize=6)
def plain(sampling: str, count: int) -> tuple[tuple[int, ...], ...]:
    """Every prompt's output without speculation; some of them alone too, which must make no difference."""
    numbers = list(range(len(texts())))
    crowded = generate(numbers, sampling, count, 32)
    for number in numbers[:: len(numbers) // 4]:
        assert crowded[number] == generate([number], sampling, count, 1)[0]
    return tuple(tuple(tokens) for tokens in crowded)


def check(row: dict[str, Any], first: int, count: int) -> None:
    numbers = [(first + index) % len(texts()) for index in range(row["batch"])]
    found = generate(numbers, row["sampling"], count, row["batch"], row["drafter"], row["depth"], row["width"])
    for number, tokens in zip(numbers, found):
        expected = list(plain(row["sampling"], count)[number])
        assert tokens == expected, (row, number, target().info().numerics)


SAMPLE = pairwise(GRID)


@pytest.mark.parametrize("index", range(0, len(SAMPLE), 8))
def test_a_sample_that_covers_every_pair(index: int) -> None:
    for offset, row in enumerate(SAMPLE[index : index + 8]):
        check(row, first=(index + offset) * 29, count=32)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", GRID["drafter"])
def test_the_whole_grid(name: str) -> None:
    rows = [row for row in whole(GRID) if row["drafter"] == name]
    for index, row in enumerate(rows):
        check(row, first=index * 29, count=32)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("sampling", list(SAMPLINGS))
def test_two_hundred_prompts_of_128_tokens(sampling: str) -> None:
    numbers = list(range(200))
    expected = [list(tokens) for tokens in plain(sampling, 128)]
    for name, depth, width in (("draft_general", 4, 1), ("draft_general", 3, 3), ("draft_suffix", 6, 1)):
        assert generate(numbers, sampling, 128, 32, name, depth, width) == expected
