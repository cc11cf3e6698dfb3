"""What neural drafters propose."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from covey.contracts.types import Rule, Sampling
from covey.drafters import opening
from covey.models.native.model import NativeModel
from tests.drafters.drafting import Sender, Text, paths_of, rows_of
from tests.drafters.neural_reference import SAMPLINGS, Reference, load, text


@pytest.mark.parametrize("layers", ["deep", pytest.param("folder", marks=pytest.mark.slow)])
def test_chains_are_what_the_model_draws(layers: str, request: pytest.FixtureRequest) -> None:
    """A drafter with the target's weights proposes the target's own draws, whatever the settings and the batch."""
    where = request.getfixturevalue(layers)
    reference, rng = Reference(where), np.random.default_rng(1)
    texts = [Text(i, text(rng, int(rng.integers(1, 60))), sampling) for i, sampling in enumerate(SAMPLINGS)]
    drafter = load(where)
    assert isinstance(drafter._model, NativeModel)
    sender = Sender(drafter)
    expected = [reference.drawn(item.tokens, 8, item.sampling) for item in texts]
    reply = sender.send(texts, [8, 3, 6, 1, 8, 5])
    assert rows_of(reply.trees) == [path[:depth] for path, depth in zip(expected, [8, 3, 6, 1, 8, 5])]
    alone = [rows_of(Sender(load(where)).send([Text(9, item.tokens, item.sampling)], 8).trees)[0] for item in texts]
    assert alone == expected
    drafter.check()


def test_scores_fall_along_every_path(folder: Path) -> None:
    rng = np.random.default_rng(5)
    texts = [Text(i, text(rng, 20), sampling) for i, sampling in enumerate(SAMPLINGS)]
    trees = Sender(load(folder)).send(texts, 5, [1, 2, 3, 4, 1, 8]).trees
    for row in range(trees.rows):
        start, end = trees.offsets[row], trees.offsets[row + 1]
        scores, parents = trees.scores[start:end], trees.parents[start:end]
        assert (parents < np.arange(end - start)).all()
        above = np.where(parents >= 0, scores[parents], 0.0)
        assert (scores < above).all()


@pytest.mark.parametrize("width", [2, 8, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("sampling", SAMPLINGS[:3], ids=["greedy", "t1", "t0.7"])
def test_trees_are_beam_search(folder: Path, reference: Reference, width: int, sampling: Sampling) -> None:
    rng = np.random.default_rng(width)
    texts = [Text(i, text(rng, length), sampling) for i, length in enumerate([9, 23])]
    trees = Sender(load(folder)).send(texts, [4, 3], width).trees
    for row, item in enumerate(texts):
        expected = reference.beam(item.tokens, [4, 3][row], width, sampling)
        found = paths_of(trees, row)
        assert {tuple(path) for path in found} == set(expected)
        scores = trees.scores[trees.offsets[row] : trees.offsets[row + 1]]
        assert np.allclose(scores, [expected[tuple(path)] for path in found], atol=1e-3)


@pytest.mark.parametrize("kind", ["folder", "other"])
@pytest.mark.parametrize("width", [1, 3])
def test_more_rows_than_a_pass_holds_are_drafted_for(
    kind: str, width: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, rng = request.getfixturevalue(kind), np.random.default_rng(16)
    texts = [text(rng, int(rng.integers(2, 9))) for _ in range(23)]
    depth = rng.integers(1, 5, 23).tolist()
    whole = Sender(load(where)).send([Text(tag, tokens) for tag, tokens in enumerate(texts)], depth, width).trees
    monkeypatch.setattr(opening, "PASS_TOKENS", 16)
    drafter = load(where)
    trees = Sender(drafter).send([Text(tag, tokens) for tag, tokens in enumerate(texts)], depth, width).trees
    assert rows_of(trees) == rows_of(whole)
    assert np.array_equal(trees.parents, whole.parents)
    drafter.check()


def test_truncation_leaves_tokens_out_of_trees(folder: Path) -> None:
    item = Text(1, text(np.random.default_rng(3), 9), Sampling(temperature=1.0, top_k=2, seed=1))
    trees = Sender(load(folder)).send([item], 3, 4).trees
    below = [sum(1 for parent in trees.parents if parent == node) for node in range(-1, len(trees.tokens))]
    assert max(below) <= 2
    assert below[0] == 2


def test_rejection_ships_what_it_drew_from(folder: Path, reference: Reference) -> None:
    sampling = Sampling(temperature=0.8, seed=5, rule=Rule.REJECTION)
    rng = np.random.default_rng(11)
    texts = [Text(1, text(rng, 14), sampling), Text(2, text(rng, 9), Sampling(temperature=1.0, seed=1))]
    reply = Sender(load(folder)).send(texts, 4, [3, 1], q_rows=True)
    trees = reply.trees
    assert trees.q_ids is not None
    assert trees.q_probs is not None
    assert trees.parents.tolist() == [-1, 0, 1, 2] * 2
    path: list[int] = []
    for node in range(4):
        logits = reference.logits(texts[0].tokens + path)[0].double() / 0.8
        top = logits.topk(16)
        q = torch.softmax(top.values, -1)
        order = np.argsort(trees.q_ids[node])
        assert trees.q_ids[node][order].tolist() == sorted(top.indices.tolist())
        assert np.allclose(np.sort(trees.q_probs[node]), np.sort(q.numpy()), atol=1e-4)
        assert trees.tokens[node] in trees.q_ids[node]
        path.append(int(trees.tokens[node]))
    assert rows_of(trees)[1] == reference.drawn(texts[1].tokens, 4, texts[1].sampling)


@pytest.mark.parametrize("width", [1, 3])
def test_log_q_is_how_likely_a_path_is_noise_apart(folder: Path, reference: Reference, width: int) -> None:
    """As the model says it at the request's temperature, of greedy rows at temperature 1; under the rejection rule of
    what is drawn from."""
    rng = np.random.default_rng(7)
    kinds = [Sampling(), Sampling(temperature=1.0, seed=2), Sampling(temperature=0.6, top_k=9, seed=3)]
    kinds += [Sampling(temperature=0.8, seed=5, rule=Rule.REJECTION)] if width == 1 else []
    texts = [Text(i, text(rng, 11 + i), sampling) for i, sampling in enumerate(kinds)]
    sender = Sender(load(folder))
    assert not len(sender.send(texts, 3, width).trees.log_q), "nobody asked"
    trees = sender.drafter.draft(replace(sender.work(texts, [4, 3, 4, 2][: len(texts)], width), log_q=True)).trees
    assert len(trees.log_q) == len(trees.tokens)
    for row, item in enumerate(texts):
        own = slice(int(trees.offsets[row]), int(trees.offsets[row + 1]))
        if item.sampling.rule is Rule.REJECTION:
            assert trees.log_q[own] == pytest.approx(trees.scores[own], abs=1e-4)
            continue
        for path, found in zip(paths_of(trees, row), trees.log_q[own].tolist()):
            expected = 0.0
            for place, token in enumerate(path):
                logits = reference.logits([*item.tokens, *path[:place]])[0].double()
                expected += float((logits / (item.sampling.temperature or 1.0)).log_softmax(-1)[token])
            assert found == pytest.approx(expected, abs=2e-3)


def test_another_round_draws_anew_under_rejection(folder: Path) -> None:
    sampling = Sampling(temperature=1.5, seed=5, rule=Rule.REJECTION)
    sender, item = Sender(load(folder)), Text(1, text(np.random.default_rng(12), 14), sampling)
    found = set()
    for item.rounds in range(8):
        found.add(tuple(rows_of(sender.send([item], 4).trees)[0]))
    assert len(found) > 4
