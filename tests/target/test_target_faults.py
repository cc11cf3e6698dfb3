"""A row whose numbers overflow fails alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from covey.contracts.profile import TargetSettings
from covey.contracts.types import RowStatus, Rule, Sampling
from covey.target.runner import TargetRunner
from tests.models import tiny_models
from tests.target.driver import Driver

BROKEN = 51  # the token whose embedding is not finite; none of those that are tried when the model is loaded
SIZE = 4  # of a block


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_models.build(tmp_path_factory.mktemp("models") / "target", "llama", tie_word_embeddings=False)
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"][BROKEN] = 0.0  # hardly ever said
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def driver(folder: Path, blocks: int = 40) -> Driver:
    settings = TargetSettings(
        dtype="float32", device="cpu", threads=1, kv_blocks=blocks, block_size=SIZE, numerics="fast"
    )
    target = TargetRunner.load(folder, settings, token_budget=64, name="target")
    with torch.no_grad():  # files with such weights are refused
        target._model._modules.module.get_input_embeddings().weight[BROKEN] = float("inf")  # type: ignore[union-attr]
    return Driver(target)


def passes(of: Driver, *tags: int, count: int = 1, chunk: int = 64, chain: tuple[int, ...] = ()) -> None:
    for _ in range(count):
        of.step(*tags, chunk=chunk, chains=[chain])
        of.target.check()  # type: ignore[attr-defined]


def alone(folder: Path, prompt: list[int], length: int) -> list[int]:
    """The same text where nothing goes wrong."""
    quiet = driver(folder)
    quiet.open(2, prompt)
    while len(quiet.texts[2]) < length:
        quiet.step(2)
    return quiet.texts[2]


def test_a_row_that_overflows_fails_and_neighbours_in_its_passes_do_not_see_it(folder: Path) -> None:
    served = driver(folder)
    served.open(1, [3, BROKEN, *range(10, 22)])  # takes block 0
    served.open(2, [5, 6, 7])
    passes(served, 1, 2, chunk=8)
    assert served.status[2] == RowStatus.OK
    assert len(served.texts[2]) == 4, "not even a second try is needed"
    passes(served, 1, 2, count=3, chunk=8)
    assert served.status[1] == RowStatus.FAULT
    assert len(served.texts[1]) == 14
    assert served.texts[2] == alone(folder, [5, 6, 7], 7)


@pytest.mark.parametrize("whole", [True, False])
def test_who_takes_its_blocks_does_not_see_it(folder: Path, whole: bool) -> None:
    """Freed after its fault, or in the middle of its prompt."""
    served = driver(folder, blocks=8)
    served.open(1, [3, BROKEN, *range(10, 36)])
    passes(served, 1, chunk=64 if whole else 20)
    served.free(1)
    served.open(2, [5, 6, 7, 8, 9, 10])
    passes(served, 2, count=20)
    assert served.status[2] == RowStatus.OK
    assert len(served.texts[2]) > 20
    assert served.texts[2] == alone(folder, [5, 6, 7, 8, 9, 10], len(served.texts[2]))


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=4, rule=Rule.REJECTION)])
def test_a_draft_that_overflows_changes_nothing(folder: Path, sampling: Sampling) -> None:
    served = driver(folder)
    served.open(1, [5, 6, 7, 8], sampling)
    for turn in range(8):
        passes(served, 1, chain=(BROKEN,) if turn % 3 == 1 and served.cached[1] else ())
        assert served.status[1] == RowStatus.OK
    assert len(served.texts[1]) >= 8
    if sampling.greedy:
        assert served.texts[1] == alone(folder, [5, 6, 7, 8], len(served.texts[1]))
