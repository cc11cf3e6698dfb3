"""How alike target and drafter are, against sums over all tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from covey.contracts.profile import DrafterSettings, TargetSettings
from covey.contracts.types import SPARSE, Floats, Ints, Rule, Sampling, Trees
from covey.drafters.neural import NeuralDrafter
from covey.sampling.settings import SettingsTable
from covey.target.divergence import block_divergence
from covey.target.runner import TargetRunner
from tests.arrays import ints
from tests.drafters.drafting import Sender, Text
from tests.drafters.neural_reference import Reference
from tests.models.tiny_models import build
from tests.target.driver import Driver

Reals = npt.NDArray[np.float64]
VOCAB = 60


def softmax(logits: Reals) -> Reals:
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    found: Reals = weights / weights.sum(-1, keepdims=True)
    return found


def alike(p: Reals, q: Reals) -> Reals:
    """1 - TV(p, q)."""
    found: Reals = 1.0 - 0.5 * np.abs(p - q).sum(-1)
    return found


def planted(tokens: Ints, q_ids: Ints, q_probs: Floats, offsets: Ints, parents: Ints) -> Trees:
    return Trees(offsets, tokens, parents, np.zeros(len(tokens), np.float32), q_ids, q_probs)


def test_siblings_count_once_and_certainty_is_a_row_of_one_token() -> None:
    logits = torch.from_numpy(np.random.default_rng(3).normal(0, 2, (5, VOCAB))).float()
    table = SettingsTable()
    setting = table.add(Sampling(), 4)
    q_ids, q_probs = np.zeros((4, SPARSE), np.int32), np.zeros((4, SPARSE), np.float32)
    q_ids[:, 0], q_probs[:, 0] = [7, 7, 9, 9], 1.0
    trees = planted(ints(7, 8, 9, 10), q_ids, q_probs, ints(0, 4), ints(-1, -1, 1, 1))
    p = softmax(logits.double().numpy())
    found = block_divergence(logits, table, np.full(5, setting), trees)
    assert found.tolist() == pytest.approx([(p[0, 7] + p[2, 9]) / 2], abs=1e-6)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    place = tmp_path_factory.mktemp("models")
    return build(place / "target", "llama", num_hidden_layers=2), build(place / "draft", "llama", seed=9)


@pytest.mark.parametrize("rule", Rule)
@pytest.mark.parametrize("heat", [0.0, 0.7, 1.0])
def test_a_target_says_it_of_every_row_that_was_drafted(folders: tuple[Path, Path], rule: Rule, heat: float) -> None:
    settings = TargetSettings(dtype="float32", device="cpu", kv_blocks=64, block_size=8, threads=1)
    target = TargetRunner.load(folders[0], settings, token_budget=256, name="target")
    drafter = NeuralDrafter.load(folders[1], DrafterSettings(dtype="float32", kv_blocks=64), name="draft")
    rng = np.random.default_rng(4)
    sampling = Sampling(temperature=heat, rule=rule, seed=5, top_k=9)
    prompts = [[int(token) for token in rng.integers(2, 97, size)] for size in (9, 20, 5)]
    texts = [Text(row, prompt, sampling) for row, prompt in enumerate(prompts)]
    trees = Sender(drafter).send(texts, [3, 0, 2], q_rows=True).trees

    driver = Driver(target)
    for row, prompt in enumerate(prompts):
        driver.open(row, prompt, sampling)
    found = driver.step(0, 1, 2, trees=trees, divergence=True).divergence
    models = Reference(folders[0]), Reference(folders[1])
    for row, depth in ((0, 3), (2, 2)):
        shares, start = [], trees.offsets[row]
        for at in range(depth):
            text = prompts[row] + trees.tokens[start : start + at].tolist()
            p, q = (softmax(model.logits(text)[0].double().numpy()) for model in models)
            assert trees.q_ids is not None
            assert trees.q_probs is not None
            kept = trees.q_ids[start + at][trees.q_probs[start + at] > 0]
            if rule is Rule.COUPLED:
                shares.append(np.minimum(p, q)[kept].sum())
            else:
                whole = np.zeros(len(q))
                whole[kept] = q[kept] / q[kept].sum() if heat else np.eye(len(kept))[0]
                shares.append(alike(p, whole))
        assert found[row] == pytest.approx(np.mean(shares), abs=1e-3)
    assert found[1] == -1.0
    assert driver.step(0, 1, 2, chains=[[5], [], [6]], divergence=True).divergence.tolist() == [-1.0, -1.0, -1.0]
    assert not len(driver.step(0, 1, 2).divergence)


def test_what_the_target_lacks_is_unlike_it() -> None:
    """A drafter that others share may say how likely it finds tokens that are only theirs."""
    logits = torch.from_numpy(np.random.default_rng(4).normal(0, 2, (2, VOCAB))).float()
    table = SettingsTable()
    setting = table.add(Sampling(), 4)
    q_ids, q_probs = np.zeros((1, SPARSE), np.int32), np.zeros((1, SPARSE), np.float32)
    q_ids[0, :2], q_probs[0, :2] = [VOCAB + 3, 7], [0.9, 1e-4]
    trees = planted(ints(7), q_ids, q_probs, ints(0, 1), ints(-1))
    assert block_divergence(logits, table, np.full(2, setting), trees).tolist() == pytest.approx([1e-4])
