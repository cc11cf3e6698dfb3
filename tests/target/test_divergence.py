"""How alike target and drafter are, against sums over all tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from covey.contracts.profile import DrafterSettings, TargetSettings
from covey.contracts.types import SPARSE, Floats, Ints, Open, Rule, Sampling, TargetReply, TargetWork, Trees
from covey.drafters.neural import NeuralDrafter
from covey.sampling.proposals import propose_rejection, sparse_q
from covey.sampling.settings import SettingsTable
from covey.target.divergence import block_divergence
from covey.target.runner import TargetRunner
from tests.arrays import ints
from tests.drafters.drafting import Sender, Text
from tests.drafters.neural_reference import Reference
from tests.models.tiny_models import build

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


@pytest.mark.parametrize("spread", [1.0, 4.0])
def test_a_sparse_row_gives_a_bound_that_its_missing_mass_limits(spread: float) -> None:
    rng = np.random.default_rng(1)
    p_logits, q_logits = (torch.from_numpy(rng.normal(0, spread, (9, VOCAB))).float() for _ in range(2))
    table = SettingsTable()
    setting = table.add(Sampling(temperature=0.5, top_k=3, seed=1), 4)
    offsets, parents = ints(0, 3, 3, 6), ints(-1, 0, 1, -1, 0, 1)
    places = np.asarray([0, 1, 2, 5, 6, 7])  # of the parents: row 1 has a root alone
    q_ids, q_probs = sparse_q(q_logits[places])
    trees = planted(q_ids[:, 0], q_ids, q_probs, offsets, parents)
    found = block_divergence(p_logits, table, np.full(9, setting), trees)
    exact = alike(softmax(p_logits.double().numpy()[places]), softmax(q_logits.double().numpy()[places]))
    means = exact[:3].mean(), exact[3:].mean()
    missing = 1.0 - q_probs.sum(axis=1)
    assert found[1] == -1.0
    for row, part in ((0, slice(0, 3)), (2, slice(3, 6))):
        mean = means[row // 2]
        assert mean - missing[part].mean() - 1e-6 <= found[row] <= mean + 1e-6
    if spread > 2:
        assert missing.max() < 0.06  # hence the bound says something


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_what_the_rejection_rule_draws_from_is_whole(temperature: float) -> None:
    rng = np.random.default_rng(2)
    p_logits, q_logits = (torch.from_numpy(rng.normal(0, 2, (4, VOCAB))).float() for _ in range(2))
    table = SettingsTable()
    setting = table.add(Sampling(temperature=temperature, top_k=9, rule=Rule.REJECTION, seed=1), 4)
    drawn = propose_rejection(q_logits[:3], table, np.full(3, setting), np.arange(3), np.zeros(3, np.int64))
    trees = planted(drawn.tokens, drawn.ids, drawn.probs, ints(0, 3), ints(-1, 0, 1))
    q = np.zeros((3, VOCAB))
    for row, ids in enumerate(drawn.ids[:, :9]):
        q[row, ids] = softmax(q_logits.double().numpy()[row, ids])  # at temperature 1, of the tokens kept
    expected = alike(softmax(p_logits.double().numpy()[:3]), q).mean()
    found = block_divergence(p_logits, table, np.full(4, setting), trees)
    assert found.tolist() == pytest.approx([expected], abs=1e-5)


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
    sampling = Sampling(temperature=heat, rule=rule, seed=5)
    prompts = [[int(token) for token in rng.integers(2, 97, size)] for size in (9, 20, 5)]
    opens = tuple(Open(row, ints(*prompt), len(prompt), sampling) for row, prompt in enumerate(prompts))
    lengths = ints(*map(len, prompts))
    texts = [Text(row, prompt, sampling) for row, prompt in enumerate(prompts)]
    trees = Sender(drafter).send(texts, [3, 0, 2], q_rows=True).trees

    def step(divergence: bool, trees: Trees, sequence: int) -> TargetReply:
        tags = np.arange(3, dtype=np.int32)
        return target.step(TargetWork(tags, lengths, lengths, trees, opens, sequence=sequence, divergence=divergence))

    found = step(True, trees, 1).divergence
    models = Reference(folders[0]), Reference(folders[1])
    for row, depth in ((0, 3), (2, 2)):
        shares, start = [], trees.offsets[row]
        for at in range(depth):
            text = prompts[row] + trees.tokens[start : start + at].tolist()
            p, q = (softmax(model.logits(text)[0].double().numpy()) for model in models)
            kept = trees.q_ids[start + at] if trees.q_ids is not None else ints()
            if rule is Rule.COUPLED:
                shares.append(np.minimum(p, q)[kept].sum())
            else:
                whole = np.zeros(len(q))
                whole[kept] = q[kept] / q[kept].sum() if heat else np.eye(len(kept))[0]
                shares.append(alike(p, whole))
        assert found[row] == pytest.approx(np.mean(shares), abs=1e-3)
    assert found[1] == -1.0
    bare = Trees(trees.offsets, trees.tokens, trees.parents)
    assert step(True, bare, 2).divergence.tolist() == [-1.0, -1.0, -1.0]
    assert not len(step(False, trees, 3).divergence)


def test_what_the_target_lacks_is_unlike_it() -> None:
    """A drafter that others share may say how likely it finds tokens that are only theirs."""
    logits = torch.from_numpy(np.random.default_rng(4).normal(0, 2, (2, VOCAB))).float()
    table = SettingsTable()
    setting = table.add(Sampling(), 4)
    q_ids, q_probs = np.zeros((1, SPARSE), np.int32), np.zeros((1, SPARSE), np.float32)
    q_ids[0, :2], q_probs[0, :2] = [VOCAB + 3, 7], [0.9, 1e-4]
    trees = planted(ints(7), q_ids, q_probs, ints(0, 1), ints(-1))
    assert block_divergence(logits, table, np.full(2, setting), trees).tolist() == pytest.approx([1e-4])
