"""Sampling says the same of arrays, which is what the host has, and of tensors, which is what a GPU has.

On a machine without a GPU the tensors are the host's: what is asked of them is the same, kernels apart.
"""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
import torch

from covey.contracts.types import Rule, Sampling, Trees
from covey.noise import noise
from covey.sampling import drawing, likeliest, proposals, rejection
from covey.sampling.penalties import Context, penalise
from covey.sampling.proposals import propose_rejection, sparse_q
from covey.sampling.rejection import verify_chains
from covey.sampling.settings import SettingsTable
from covey.target import divergence

ROWS, VOCAB = 60, 400
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SAMPLINGS = [
    Sampling(logprobs=True, top_logprobs=3),
    Sampling(temperature=1.0, logprobs=True),
    Sampling(temperature=0.7, top_k=5, top_logprobs=20),
    Sampling(temperature=1.2, top_p=0.8, logit_bias=((3, 2.0), (9, -100.0))),
    Sampling(temperature=0.9, min_p=0.05, repetition_penalty=1.3, frequency_penalty=0.2, bad_words=((4,),)),
    Sampling(temperature=1.0, top_k=200, top_p=0.95, min_tokens=4, end_ids=(1, 2)),
]


def leave_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if they were on a GPU, wherever they are."""
    for module in (drawing, likeliest, proposals, rejection, divergence):
        assert isinstance(module, ModuleType)
        monkeypatch.setattr(module, "plain", lambda logits: logits)


def settings_of(rule: Rule) -> tuple[SettingsTable, noise.Index]:
    table = SettingsTable()
    slots = [table.add(replace(SAMPLINGS[row % 6], seed=row, rule=rule), 3) for row in range(ROWS)]
    return table, np.asarray(slots, np.int64)


def made(ties: bool) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    values = np.random.default_rng(3).normal(0, 2, (ROWS, VOCAB)).astype(np.float32)
    return (np.round(values * 2) / 2).astype(np.float32) if ties else values


def test_noise_has_the_same_bits() -> None:
    """Every token's, for seeds, positions and purposes of all sizes."""
    rng, vocab = np.random.default_rng(1), 5003
    for purpose in noise.Purpose:
        seeds = np.concatenate([np.arange(20), rng.integers(0, 2**63, 20)]).astype(np.uint64)
        positions = np.concatenate([np.arange(20), rng.integers(0, 2**31, 20)])
        words = noise.row_words(noise.keys(noise.seed_words(seeds), positions, purpose))
        host = np.empty((40, vocab), np.int32)
        noise.hash_tokens(noise.token_words(vocab), words, host, np.empty_like(host))
        found = torch.empty(40, vocab, dtype=torch.int32, device=DEVICE)
        table, there = noise.token_words(vocab, DEVICE), torch.from_numpy(words).to(DEVICE)
        noise.hash_tokens(table, there, found, torch.empty_like(found))
        assert np.array_equal(found.cpu().numpy(), host)


@pytest.mark.parametrize("prune", [True, False])
def test_races_have_the_same_scores(prune: bool) -> None:
    logits = made(False)
    row_keys = noise.keys(noise.seed_words(np.arange(ROWS, dtype=np.uint64)), np.arange(ROWS), noise.Purpose.COUPLED)
    temperatures = np.geomspace(1e-6, 50.0, ROWS)
    one, two = (
        noise.race(each, *noise.leading_tokens(each, 4), temperatures, row_keys, prune)
        for each in (logits, torch.from_numpy(logits).to(DEVICE))
    )
    assert np.array_equal(one.rows, two.rows)
    assert np.array_equal(one.tokens, two.tokens)
    assert np.array_equal(one.scores.view(np.int64), two.scores.view(np.int64))


@pytest.mark.parametrize("ties", [False, True])
def test_draws_and_whatever_goes_with_them(ties: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_tensors(monkeypatch)
    table, slots = settings_of(Rule.COUPLED)
    positions = np.arange(ROWS)
    history = np.random.default_rng(5).integers(0, VOCAB, 30).astype(np.int32)
    contexts = [Context(history, history[:2]) for _ in range(ROWS)]
    logits = made(ties)
    there = torch.from_numpy(logits).to(DEVICE)
    changed = penalise(logits, table, slots, positions, contexts)
    assert np.array_equal(penalise(there, table, slots, positions, contexts).cpu().numpy(), changed)
    one = drawing.draw_on_host(logits, changed, table, slots, positions)
    two = drawing.draw_on_host(there, torch.from_numpy(changed).to(DEVICE), table, slots, positions)
    assert np.array_equal(one.tokens, two.tokens)
    assert np.allclose(one.logprobs, two.logprobs, atol=1e-5, equal_nan=True)
    tops = [likeliest.likeliest(each, table, slots, np.arange(ROWS)) for each in (logits, there)]
    assert np.array_equal(tops[0].ids, tops[1].ids)
    assert np.allclose(tops[0].logprobs, tops[1].logprobs, atol=1e-5)


def test_the_rejection_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_tensors(monkeypatch)
    table, slots = settings_of(Rule.REJECTION)
    logits, positions, rounds = made(False), np.arange(ROWS), np.arange(ROWS)
    there = torch.from_numpy(logits).to(DEVICE)
    contexts = [Context(np.arange(3, dtype=np.int32)) for _ in range(2 * ROWS)]
    one, two = (propose_rejection(each, table, slots, positions, rounds) for each in (logits, there))
    assert np.array_equal(one.tokens, two.tokens)
    assert np.array_equal(one.ids, two.ids)
    assert np.allclose(one.probs, two.probs, atol=1e-6)
    for mine, theirs in zip(sparse_q(logits), sparse_q(there)):
        assert np.allclose(mine, theirs, atol=1e-6)

    trees = Trees(
        np.arange(ROWS + 1, dtype=np.int32), one.tokens, np.full(ROWS, -1, np.int32), q_ids=one.ids, q_probs=one.probs
    )
    wide, places = np.repeat(logits[::-1], 2, axis=0).copy(), np.repeat(slots, 2)
    at = np.repeat(positions, 2) + np.tile([0, 1], ROWS)
    kinds = (wide, torch.from_numpy(wide).to(DEVICE))
    both = [verify_chains(each, table, places, at, contexts, trees, rounds) for each in kinds]
    assert np.array_equal(both[0].walk.tokens, both[1].walk.tokens)
    assert 0 < both[0].walk.accepted.sum() < ROWS
    found = [
        divergence.block_divergence(each, table, places, trees) for each in (wide, torch.from_numpy(wide).to(DEVICE))
    ]
    assert np.allclose(found[0], found[1], atol=1e-6)
