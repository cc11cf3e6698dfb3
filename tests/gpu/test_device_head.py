"""A head on a device drafts what its definition says, in recorded chains and step by step, and its target makes its
states there."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from covey.contracts.profile import DrafterSettings
from covey.contracts.types import Sampling
from covey.drafters.neural import NeuralDrafter
from covey.drafters.opening import torch_stepper
from covey.gpu import model as device_model
from covey.gpu.head import DeviceHead
from covey.gpu.model import DeviceModel
from covey.gpu.stepper import DeviceHeadStepper
from covey.models import head_modules, heads
from covey.models.lanes import Lanes, Pass, chain
from tests.drafters.drafting import Text, paths_of, rows_of
from tests.drafters.head_sender import HeadSender
from tests.models import tiny_heads, tiny_models
from tests.models.tiny_heads import DIM, KV_HEADS, TAPS, WIDTH, Formula

WHERE = "cuda" if torch.cuda.is_available() else "cpu"
RNG = np.random.default_rng(4)
SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "device": WHERE,
    "blocks": 12,
    "block_size": 8,
    "max_pass_tokens": 16,
}
PROMPTS = [RNG.integers(2, 97, length).tolist() for length in (40, 2, 17)]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.build(tmp_path_factory.mktemp("target"), "llama", **tiny_heads.TARGET)


class Counting(DeviceHeadStepper):
    """Says how many chains it drew, and how many steps it took."""

    chains = steps = 0

    def chain(self, *given: object) -> object:  # type: ignore[override]
        self.chains += 1
        return super().chain(*given)  # type: ignore[arg-type]

    def step(self, *given: object) -> Any:
        self.steps += 1
        return super().step(*given)  # type: ignore[arg-type]


def load(folder: Path, target: Path) -> tuple[NeuralDrafter, Counting]:
    head = heads.read(folder, target)
    modules = head_modules.read(head, folder, dtype="float32", device=WHERE)
    model = DeviceHead(modules, blocks=64, block_size=8, max_pass_tokens=128)
    assert isinstance(torch_stepper(model), DeviceHeadStepper)
    stepper = Counting(model)
    return NeuralDrafter(model, stepper, DrafterSettings(), name="draft", state_width=model.width), stepper


FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "some tokens, normed": {
        "known": sorted(RNG.permutation(97)[:40].tolist()),
        "norm_before_residual": True,
        "norm_output": True,
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_chains_and_trees_are_those_of_the_formula_as_texts_grow(form: str, target: Path, tmp_path: Path) -> None:
    folder = tiny_heads.build(tmp_path, **FORMS[form])
    normed = form != "plain"
    formula = Formula(folder, target, normed_residual=normed, normed_output=normed)
    drafter, stepper = load(folder, target)
    sender = HeadSender(drafter, formula)
    sampled = [Sampling(temperature, seed=tag) for tag, temperature in enumerate((0.0, 1.0, 0.6))]
    texts = [Text(tag, list(prompt), sampled[tag]) for tag, prompt in enumerate(PROMPTS)]
    for accepted in (0, 3, 1):
        depths = [4, 2, 3]
        reply = sender.send(texts, depths)
        assert not reply.status.any()
        for text, drafted, depth in zip(texts, rows_of(reply.trees), depths):
            assert drafted == sender.expected(text, depth)
            text.tokens += [*drafted[:accepted], 5]
    assert (stepper.chains, stepper.steps) == (3, 0)
    greedy = Text(9, list(PROMPTS[0]))
    trees = sender.send([greedy], 3, 2).trees
    states = tiny_heads.floats(tiny_heads.words(formula.states(greedy.tokens))[:-1])
    assert paths_of(trees, 0) == formula.beam(greedy.tokens, states, 3, 2)
    assert stepper.steps == 2
    drafter.check()


def test_drafts_are_recorded_at_load(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows read one token, or as many as they have accepted."""
    folder = tiny_heads.build(tmp_path)
    drafter, stepper = load(folder, target)
    asked = set[Hashable]()

    def noted(key: Hashable, _work: object) -> torch.Tensor:
        asked.add(key)
        return torch.zeros(0)

    monkeypatch.setattr(stepper._chains._model.graphs, "run", noted)
    stepper.record(3)
    recorded, sender = set(asked), HeadSender(drafter, Formula(folder, target))
    text = Text(1, list(PROMPTS[2]))
    sender.send([text], 3)
    asked.clear()
    for more in (1, 2, 3, 4):
        text.tokens += [5] * more
        sender.send([text], 3)
    assert len(asked) == 4
    assert asked <= recorded


@pytest.fixture(scope="module")
def plain(target: Path) -> DeviceModel:
    return DeviceModel(target, **SETTINGS)


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"nested": True, "norm_before_fc": True, "fc_norm": True, "eagle_aux_hidden_state_layer_ids": [4, 2, 3]},
    ],
    ids=["plain", "normed, in another order"],
)
def test_the_target_makes_the_states_of_the_formula(
    form: dict[str, Any], target: Path, plain: DeviceModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They lie with their keys, also in other segments of memory; copies and moves take them along."""
    monkeypatch.setattr(device_model, "SEGMENT_BYTES", 4 * 7 * 2 * KV_HEADS * DIM * 8 * 4)
    folder = tiny_heads.build(tmp_path, **form)
    taps = heads.taps_of(folder, target)
    tapped = DeviceModel(target, **SETTINGS, taps=taps)
    assert tapped.store.segments > 1
    assert (plain.state_width, tapped.state_width, sorted(taps.layers)) == (0, WIDTH, sorted(TAPS))
    tokens = RNG.integers(2, 97, 16).astype(np.int32)
    work = chain(tokens, 8)
    assert torch.equal(plain.forward(work).clone(), tapped.forward(work))
    last = np.asarray([16], np.int32)
    lanes = Lanes(np.asarray([0, 1], np.int32), last + 1, np.arange(3, dtype=np.int32)[None])
    following = Pass(last, last, last, lanes, last - 16)
    assert torch.equal(plain.forward(following).clone(), tapped.forward(following)), "keys are where they were"
    states = tapped.states(work.slots)
    exact = Formula(folder, target).states(tokens.tolist())
    assert (tiny_heads.floats(states) - exact).abs().mean() < exact.abs().mean() * 2**-8
    tapped.copy_slots(work.slots[3:5], work.slots[10:12])
    assert np.array_equal(tapped.states(work.slots[10:12]), states[3:5])
    tapped.move_blocks(np.asarray([0, 2], np.int32), np.asarray([7, 9], np.int32))
    moved = np.concatenate([np.arange(56, 64), np.arange(72, 80)]).astype(np.int32)
    there = np.concatenate([np.arange(0, 8), np.arange(16, 24)]).astype(np.int32)
    assert np.array_equal(tapped.states(moved), tapped.states(there))
