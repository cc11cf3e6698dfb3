"""A row whose numbers overflow fails alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from covey.contracts.profile import TargetSettings
from covey.contracts.types import NO_FLOATS, Open, RowStatus, Rule, Sampling, TargetReply, TargetWork, Trees
from covey.target.runner import TargetRunner
from tests.arrays import ints
from tests.models import tiny_models

BROKEN = 51  # the token whose embedding is not finite; none of those that are tried when the model is loaded
SIZE = 4  # of a block


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_models.build(tmp_path_factory.mktemp("models") / "target", "llama", tie_word_embeddings=False)
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"][BROKEN] = 0.0  # hardly ever said
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


class Driver:
    """Runs requests as an orchestrator would: prompts in chunks, then token by token, drafts where they are given."""

    def __init__(self, folder: Path, blocks: int = 40) -> None:
        settings = TargetSettings(
            dtype="float32", device="cpu", threads=1, kv_blocks=blocks, block_size=SIZE, numerics="fast"
        )
        self.target = TargetRunner.load(folder, settings, token_budget=64, name="target")
        with torch.no_grad():  # files with such weights are refused
            self.target._model._modules.module.get_input_embeddings().weight[BROKEN] = float("inf")  # type: ignore[union-attr]
        self.texts: dict[int, list[int]] = {}
        self.cached: dict[int, int] = {}
        self.status: dict[int, int] = {}
        self.opens: list[Open] = []
        self.frees: list[int] = []
        self.sequence = 0

    def open(self, tag: int, tokens: list[int], sampling: Sampling = Sampling()) -> None:  # noqa: B008
        self.opens.append(Open(tag, ints(*tokens), len(tokens), sampling))
        self.texts[tag], self.cached[tag] = list(tokens), 0

    def free(self, tag: int) -> None:
        del self.texts[tag]
        self.frees.append(tag)

    def step(self, *tags: int, draft: tuple[int, ...] = (), chunk: int = 64) -> TargetReply:
        """One pass over the given rows, `draft` being a chain of the first."""
        self.sequence += 1
        size = len(draft)
        trees = Trees(ints(0, *[size] * len(tags)), ints(*draft), np.arange(-1, size - 1, dtype=np.int32), NO_FLOATS)
        work = TargetWork(
            ints(*tags),
            ints(*(len(self.texts[tag]) for tag in tags)),
            ints(*(min(chunk, len(self.texts[tag]) - self.cached[tag]) for tag in tags)),
            trees,
            tuple(self.opens),
            tuple(self.frees),
            sequence=self.sequence,
        )
        self.opens, self.frees = [], []
        reply = self.target.step(work)
        for row, tag in enumerate(tags):
            self.texts[tag] += reply.tokens[reply.offsets[row] : reply.offsets[row + 1]].tolist()
            self.cached[tag] = int(reply.num_cached_tokens[row])
            self.status[tag] = int(reply.status[row])
        self.target.check()
        return reply

    def alone(self, folder: Path, tag: int, prompt: list[int], sampling: Sampling = Sampling()) -> list[int]:  # noqa: B008
        """The same text where nothing goes wrong."""
        quiet = Driver(folder)
        quiet.open(tag, prompt, sampling)
        while len(quiet.texts[tag]) < len(self.texts[tag]):
            quiet.step(tag)
        return quiet.texts[tag]


def test_a_row_that_overflows_fails(folder: Path) -> None:
    driver = Driver(folder)
    driver.open(1, [3, BROKEN, 4])
    for _ in range(3):
        driver.step(1)
        if driver.status[1] == RowStatus.FAULT:
            break
    assert driver.status[1] == RowStatus.FAULT
    assert driver.texts[1] == [3, BROKEN, 4]


def test_neighbours_in_its_passes_do_not_see_it(folder: Path) -> None:
    driver = Driver(folder)
    driver.open(1, [3, BROKEN, *range(10, 40)])  # takes block 0
    driver.open(2, [5, 6, 7])
    driver.step(1, 2, chunk=8)
    assert driver.status[2] == RowStatus.OK
    assert len(driver.texts[2]) == 4, "not even a second try is needed"
    driver.step(1, 2, chunk=8)
    assert driver.texts[2] == driver.alone(folder, 2, [5, 6, 7])


@pytest.mark.parametrize("whole", [True, False])
def test_who_takes_its_blocks_does_not_see_it(folder: Path, whole: bool) -> None:
    """Freed after its fault, or in the middle of its prompt."""
    driver = Driver(folder, blocks=8)
    driver.open(1, [3, BROKEN, *range(10, 36)])
    driver.step(1, chunk=64 if whole else 20)
    driver.free(1)
    driver.open(2, [5, 6, 7, 8, 9, 10])
    for _ in range(20):
        driver.step(2)
    assert driver.status[2] == RowStatus.OK
    assert len(driver.texts[2]) > 20
    assert driver.texts[2] == driver.alone(folder, 2, [5, 6, 7, 8, 9, 10])


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=4, rule=Rule.REJECTION)])
def test_a_draft_that_overflows_changes_nothing(folder: Path, sampling: Sampling) -> None:
    driver = Driver(folder)
    driver.open(1, [5, 6, 7, 8], sampling)
    for turn in range(8):
        driver.step(1, draft=(BROKEN,) if turn % 3 == 1 and driver.cached[1] else ())
        assert driver.status[1] == RowStatus.OK
    assert len(driver.texts[1]) >= 8
    if sampling.greedy:
        assert driver.texts[1] == driver.alone(folder, 1, [5, 6, 7, 8])
