"""A drafter on a device draws its chains there, and they are those that it draws step by step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from covey.contracts.profile import DrafterSettings
from covey.contracts.types import Sampling
from covey.drafters.neural import NeuralDrafter
from covey.drafters.opening import torch_stepper
from covey.gpu.model import DeviceModel
from covey.gpu.stepper import DeviceStepper
from tests.drafters.drafting import Sender, Text, paths_of, rows_of
from tests.drafters.neural_reference import VOCAB, Reference, text
from tests.models.tiny_models import build, padded

WHERE = "cuda" if torch.cuda.is_available() else "cpu"
GREEDY, WARM, HOT = Sampling(), Sampling(temperature=0.7, seed=12), Sampling(temperature=1.0, seed=11)
CUT = Sampling(temperature=1.3, top_k=5, seed=13)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("llama"), "llama", num_hidden_layers=1)


class Counting(DeviceStepper):
    """Says how many chains it drew, and how many steps it took."""

    chains = steps = 0

    def chain(self, *given: object) -> object:  # type: ignore[override]
        self.chains += 1
        return super().chain(*given)  # type: ignore[arg-type]

    def step(self, *given: object) -> torch.Tensor:
        self.steps += 1
        return super().step(*given)  # type: ignore[arg-type]


def load(folder: Path, vocab_size: int = 0) -> NeuralDrafter:
    settings = {"blocks": 64, "block_size": 8, "max_pass_tokens": 128, "vocab_size": vocab_size}
    model = DeviceModel(folder, dtype="float32", device=WHERE, **settings)
    assert isinstance(torch_stepper(model), DeviceStepper)
    return NeuralDrafter(model, Counting(model), DrafterSettings(), name="draft")


@pytest.fixture(scope="module")
def drafter(folder: Path) -> NeuralDrafter:
    return load(folder)


def stepper_of(drafter: NeuralDrafter) -> Counting:
    assert isinstance(drafter._stepper, Counting)
    return drafter._stepper


def test_chains_are_what_the_model_draws(folder: Path, drafter: NeuralDrafter) -> None:
    reference, rng = Reference(folder), np.random.default_rng(1)
    texts = [Text(i, text(rng, int(rng.integers(1, 40))), each) for i, each in enumerate((GREEDY, HOT, WARM))]
    depths = [4, 2, 3]
    expected = [reference.drawn(item.tokens, depth, item.sampling) for item, depth in zip(texts, depths)]
    stepper = stepper_of(drafter)
    stepper.chains = stepper.steps = 0
    sender = Sender(drafter)
    first = sender.send(texts, depths)
    assert rows_of(first.trees) == expected
    assert (stepper.chains, stepper.steps) == (1, 0)
    scores = np.split(first.trees.scores, first.trees.offsets[1:-1])
    assert all((np.diff(row) < 0).all() and row[0] < 0 for row in scores)
    for item, path in zip(texts, expected):  # one row takes all, one part of it, one nothing; each a token more
        taken = path[: len(path) - item.tag]
        item.tokens += [*taken, (path[len(taken)] + 1) % 97 if len(taken) < len(path) else 5]
    again = [reference.drawn(item.tokens, 3, item.sampling) for item in texts]
    assert rows_of(sender.send(texts, 3).trees) == again, "keys of what was taken are not where they belong"
    drafter.check()


def test_scores_are_those_of_steps(drafter: NeuralDrafter) -> None:
    item = Text(1, text(np.random.default_rng(2), 9), HOT)
    alone = Sender(drafter).send([item], 4).trees
    item.seen = None
    beside = Sender(drafter).send([item, Text(2, [5, 6, 7], CUT)], 4).trees  # one row's cuts: all go by steps
    assert rows_of(alone)[0] == rows_of(beside)[0]
    np.testing.assert_allclose(alone.scores, beside.scores[:4], rtol=1e-3, atol=1e-4)


def test_cut_rows_and_trees_go_step_by_step(folder: Path, drafter: NeuralDrafter) -> None:
    reference, stepper = Reference(folder), stepper_of(drafter)
    items = [Text(1, text(np.random.default_rng(3), 11), CUT), Text(2, text(np.random.default_rng(4), 6), GREEDY)]
    stepper.chains = stepper.steps = 0
    found = Sender(drafter).send(items, 3)
    assert rows_of(found.trees) == [reference.drawn(item.tokens, 3, item.sampling) for item in items]
    assert (stepper.chains, stepper.steps) == (0, 2)
    for item in items:
        item.seen = None
    trees = Sender(drafter).send(items, 3, 2).trees
    for row, item in enumerate(items):
        assert reference.drawn(item.tokens, 3, item.sampling) in paths_of(trees, row)


def test_tokens_that_only_one_model_has_are_neither_drawn_nor_read(
    folder: Path, drafter: NeuralDrafter, tmp_path: Path
) -> None:
    """Of a drafter that is padded beyond its target, and of a target that has tokens which its drafter lacks."""
    tokens = text(np.random.default_rng(8), 20)
    larger = load(padded(tmp_path / "larger", folder, VOCAB + 13), VOCAB)
    whole = load(tmp_path / "larger")

    def drawn(drafter: NeuralDrafter, *last: int, first: int = 0, **changes: int) -> list[list[int]]:
        texts = [Text(first + tag, [*tokens, *last], sampling) for tag, sampling in enumerate((GREEDY, HOT))]
        return rows_of(drafter.draft(replace(Sender(drafter).work(texts, 4), **changes)).trees)

    expected = drawn(drafter, 0, 5)
    assert drawn(larger, VOCAB + 2, 5) == expected
    assert drawn(whole, 0, 5, vocab_size=VOCAB) == expected
    assert drawn(drafter, VOCAB, 5, first=10) == expected
    assert stepper_of(larger).chains == stepper_of(whole).chains == 1
