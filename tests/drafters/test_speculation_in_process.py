"""Engine, target and drafters in one process: what is drafted never changes what comes out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from covey.contracts.ports import Drafter
from covey.contracts.profile import DrafterSettings, TargetSettings
from covey.contracts.types import DrafterInfo, DraftReply, DraftWork, Sampling
from covey.drafters.neural import NeuralDrafter
from covey.drafters.ngram import NgramDrafter
from covey.drafters.suffix import SuffixDrafter
from covey.target.runner import TargetRunner
from tests.engines import answers
from tests.fakes import Collector, request
from tests.models.tiny_models import build, prompts
from tests.static_planner import StaticPlanner

SETTINGS = DrafterSettings(dtype="float32", kv_blocks=256)
SAMPLINGS = (
    Sampling(),
    Sampling(temperature=1.0, seed=1),
    Sampling(temperature=0.7, top_p=0.9, seed=2),
    Sampling(temperature=1.2, top_k=10, repetition_penalty=1.2, seed=3),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target, and the drafter that knows it perfectly."""
    return build(tmp_path_factory.mktemp("models") / "target", "llama", num_hidden_layers=2)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("models") / "stranger", "llama", seed=9, num_hidden_layers=1)


@pytest.fixture(scope="module", params=["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def target(request: pytest.FixtureRequest, folder: Path) -> TargetRunner:
    settings = TargetSettings(dtype=request.param, device="cpu", kv_blocks=400, block_size=8, threads=1)
    return TargetRunner.load(folder, settings, token_budget=256, name="target")


class Unreliable:
    """A drafter that loses all it knows again and again."""

    def __init__(self, make: Callable[[], Drafter]) -> None:
        self._make = make
        self._calls = 0
        self._drafter = make()

    def info(self) -> DrafterInfo:
        return self._drafter.info()

    def draft(self, work: DraftWork) -> DraftReply:
        self._calls += 1
        if self._calls % 7 == 0:
            self._drafter = self._make()
        return self._drafter.draft(work)


def run(
    target: TargetRunner, drafters: dict[str, Drafter], depth: int, width: int, samplings: Sequence[Sampling]
) -> Collector:
    """Five texts of each sampling, side by side."""
    texts = prompts(np.random.default_rng(7), 97, 5, 40, 1, 17, 23)
    wanted = [(sampling, number, text) for sampling in samplings for number, text in enumerate(texts, start=1)]
    asked = [
        request(key, text.tolist(), 24 + number, sampling=replace(sampling, seed=sampling.seed + number))
        for key, (sampling, number, text) in enumerate(wanted)
    ]
    limits = {"max_running": len(asked), "token_budget": 256, "growth_tokens": 16, "block_size": 8}
    sink = answers(target, asked, StaticPlanner(depth, width), drafters, **limits)
    target.check()
    assert len(sink.ended) == len(asked)
    return sink


@pytest.mark.parametrize(("depth", "width"), [(3, 3), pytest.param(4, 1, marks=pytest.mark.slow)])
def test_output_is_the_targets_own(target: TargetRunner, folder: Path, stranger: Path, depth: int, width: int) -> None:
    alone = [run(target, {}, 0, 1, [sampling]).tokens for sampling in SAMPLINGS]
    expected = dict(enumerate(tokens[key] for tokens in alone for key in sorted(tokens)))
    twin = NeuralDrafter.load(folder, SETTINGS, name="twin")
    drafters: dict[str, tuple[Drafter, ...]] = {
        "chain": (twin, NeuralDrafter.load(stranger, SETTINGS, name="stranger")),
        "lookup": (NgramDrafter(SETTINGS, name="n", vocab_size=97), SuffixDrafter(SETTINGS, name="s", vocab_size=97)),
        "weak": (
            Unreliable(lambda: NeuralDrafter.load(folder, SETTINGS, name="again")),
            NeuralDrafter.load(folder, replace(SETTINGS, kv_blocks=14, catch_up_tokens=16), name="small"),
        ),
    }
    for group in drafters.values():
        for drafter in group:
            found = run(target, {"draft": drafter}, depth, width, SAMPLINGS)
            assert found.tokens == expected
            if isinstance(drafter, NeuralDrafter):
                drafter.check()
