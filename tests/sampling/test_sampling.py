"""Each sampling setting against the plain reference and, where the meaning is the same, Hugging Face's processors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from reference_sampling import distribution
from scipy import stats
from transformers import (
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from covey.contracts.types import NO_INTS, Ints, Sampling, Trees
from covey.drafters.choosing import Choosing
from covey.sampling.drawing import Context, Fault, SettingsTable, draw
from covey.sampling.proposals import propose_rejection, sparse_q
from covey.sampling.rejection import probabilities, verify_chains

WARM = Sampling(temperature=0.8)
TRUNCATIONS = [
    {"top_k": 1},
    {"top_k": 5},
    {"top_k": 200},
    {"top_p": 0.5},
    {"top_p": 0.97},
    {"top_p": 1e-9},
    {"min_p": 0.1},
    {"top_k": 7, "top_p": 0.8},
    {"top_k": 100, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 3.0, "top_p": 0.9},
    {},
]


def logits_of(rows: int, vocab: int, seed: int = 0, ties: bool = False) -> torch.Tensor:
    values = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 2
    return (values * 2).round() / 2 if ties else values


def table_of(*samplings: Sampling, num_prompt: int = 0) -> tuple[SettingsTable, Ints]:
    table = SettingsTable(1)
    return table, np.array([table.add(sampling, num_prompt) for sampling in samplings], np.int32)


@pytest.mark.parametrize("settings", TRUNCATIONS, ids=str)
@pytest.mark.parametrize(("vocab", "ties"), [(300, False), (300, True), (40, True)])
def test_truncations_equal_the_reference(settings: dict[str, Any], vocab: int, ties: bool) -> None:
    sampling = replace(WARM, **settings)
    logits = logits_of(6, vocab, ties=ties)
    table, slots = table_of(*[sampling] * 6)
    probs, faults = probabilities(logits, table, slots.astype(np.int64), np.zeros(6, np.int64), None)
    assert not faults.any()
    for row in range(6):
        expected = distribution(logits[row].double().numpy(), sampling, [], [])
        assert np.array_equal(probs[row] > 0, expected > 0)
        assert np.allclose(probs[row], expected, atol=1e-12)


@pytest.mark.parametrize("settings", TRUNCATIONS, ids=str)
def test_draws_follow_the_truncated_distribution(settings: dict[str, Any]) -> None:
    count, vocab = 8000, 120
    logits = logits_of(1, vocab, seed=3, ties=True)
    table, slots = table_of(*[replace(WARM, **settings, seed=i) for i in range(count)])
    drawn = draw(logits.expand(count, vocab), table, slots, np.full(count, 4, np.int32)).tokens
    expected = distribution(logits[0].double().numpy(), replace(WARM, **settings), [], []) * count
    observed = np.bincount(drawn, minlength=vocab)
    assert not observed[expected == 0].any()
    rare = expected < 5
    observed, expected = (
        np.append(observed[~rare], observed[rare].sum()),
        np.append(expected[~rare], expected[rare].sum()),
    )
    if expected[-1] == 0:
        observed, expected = observed[:-1], expected[:-1]
    assert len(expected) == 1 or stats.chisquare(observed, expected).pvalue > 1e-3


def test_truncations_equal_hugging_face() -> None:
    logits = logits_of(8, 500, seed=5)
    ids = torch.zeros(8, 1, dtype=torch.long)
    for settings, warper in (
        ({"top_k": 9}, TopKLogitsWarper(9)),
        ({"top_p": 0.83}, TopPLogitsWarper(0.83)),
        ({"min_p": 0.07}, MinPLogitsWarper(0.07)),
    ):
        table, slots = table_of(*[Sampling(temperature=1.0, **settings)] * 8)
        probs, _ = probabilities(logits, table, slots.astype(np.int64), np.zeros(8, np.int64), None)
        theirs = warper(ids, logits.clone()).double().softmax(1)
        assert np.allclose(probs, theirs.numpy(), atol=1e-6)


PENALTIES = [
    {"repetition_penalty": 1.4},
    {"repetition_penalty": 0.7},
    {"presence_penalty": 0.9},
    {"frequency_penalty": -0.6},
    {"bad_words": ((3,), (1, 2), (4, 5, 6))},
    {"min_tokens": 6, "end_ids": (0, 7)},
    {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.4, "bad_words": ((2, 2),)},
]


@pytest.mark.parametrize("settings", PENALTIES, ids=str)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_penalties_equal_the_reference(settings: dict[str, Any], temperature: float) -> None:
    rng = np.random.default_rng(1)
    vocab, prompt = 9, 4
    table = SettingsTable(2)
    samplings, contexts, positions, slots = [], [], [], []
    for request in range(5):
        sampling = replace(Sampling(temperature=temperature, seed=request), **settings)
        slot = table.add(sampling, prompt)
        history = rng.integers(0, vocab, prompt + 2 * request).astype(np.int32)
        for size in (0, 1, 3):
            path = rng.integers(0, vocab, size).astype(np.int32)
            samplings.append(sampling)
            slots.append(slot)
            contexts.append(Context(history, path))
            positions.append(len(history) + size)
    logits = logits_of(len(slots), vocab, seed=2)
    probs, _ = probabilities(logits, table, np.array(slots), np.array(positions), contexts)
    drawn = draw(logits, table, np.array(slots, np.int32), np.array(positions, np.int32), contexts).tokens
    for row, context in enumerate(contexts):
        tokens = np.concatenate((context.history, context.path)).tolist()
        expected = distribution(logits[row].numpy(), samplings[row], tokens[:prompt], tokens[prompt:])
        assert np.allclose(probs[row], expected, atol=1e-6)
        assert expected[drawn[row]] > 0


def test_penalties_equal_hugging_face() -> None:
    rng = np.random.default_rng(2)
    logits = logits_of(1, 12, seed=9)
    history = rng.integers(0, 12, 7).astype(np.int32)
    ids = torch.from_numpy(history.astype(np.int64))[None]
    word = (*history[-2:].tolist(), 8)
    cases: list[tuple[dict[str, Any], Any]] = [
        ({"repetition_penalty": 1.3}, RepetitionPenaltyLogitsProcessor(1.3)),
        ({"bad_words": ((5,), word)}, NoBadWordsLogitsProcessor([[5], list(word)], eos_token_id=[11])),
        ({"min_tokens": 5, "end_ids": (2,)}, MinNewTokensLengthLogitsProcessor(4, 5, torch.tensor([2]))),
    ]
    for settings, processor in cases:
        table, slots = table_of(Sampling(temperature=1.0, **settings), num_prompt=4)
        probs, _ = probabilities(logits, table, slots.astype(np.int64), np.array([7]), [Context(history)])
        assert np.allclose(probs, processor(ids, logits.clone()).double().softmax(1).numpy(), atol=1e-6)


def mixed(rows: int) -> tuple[SettingsTable, Ints, list[Context | None]]:
    kinds = [Sampling(), *(replace(WARM, **settings) for settings in TRUNCATIONS)]
    kinds += [replace(WARM, **settings) for settings in PENALTIES] + [Sampling(repetition_penalty=1.3, logprobs=True)]
    samplings = [replace(kinds[i % len(kinds)], seed=i, logprobs=i % 3 == 0) for i in range(rows)]
    table, slots = table_of(*samplings, num_prompt=3)
    rng = np.random.default_rng(0)
    contexts: list[Context | None] = [
        Context(rng.integers(0, 9, 8).astype(np.int32)) if sampling.has_penalties else None for sampling in samplings
    ]
    return table, slots, contexts


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_row_does_not_depend_on_the_others(dtype: torch.dtype) -> None:
    rows = 60
    table, slots, contexts = mixed(rows)
    logits = logits_of(rows, 700, ties=True).to(dtype)
    positions = np.arange(8, 8 + rows, dtype=np.int32)
    together = draw(logits, table, slots, positions, contexts)
    order = np.random.default_rng(4).permutation(rows)
    for group in (*np.array_split(order, 7), *order[:20, None]):
        alone = draw(logits[group], table, slots[group], positions[group], [contexts[i] for i in group])
        assert np.array_equal(alone.tokens, together.tokens[group])
        assert alone.logprobs.tobytes() == together.logprobs[group].tobytes()


def test_logprobs_are_the_models_own() -> None:
    logits = logits_of(2, 50)
    table, slots = table_of(replace(WARM, logprobs=True, top_k=3, repetition_penalty=1.5), WARM)
    drawn = draw(logits, table, slots, np.array([9, 9], np.int32), [Context(np.arange(9, dtype=np.int32)), None])
    assert np.isclose(drawn.logprobs[0], logits[0].log_softmax(0)[drawn.tokens[0]])
    assert np.isnan(drawn.logprobs[1])


def test_faults_stay_in_their_rows() -> None:
    logits = logits_of(6, 20)
    logits[1, 4], logits[2], logits[3, 5] = torch.nan, -torch.inf, torch.inf
    logits[4] = -torch.inf
    logits[4, 13] = 2.0
    for sampling in (Sampling(), replace(WARM, top_p=0.9), replace(WARM, temperature=1e-12), Sampling(temperature=1e9)):
        table, slots = table_of(*[replace(sampling, seed=i) for i in range(6)])
        drawn = draw(logits, table, slots, np.arange(6, dtype=np.int32))
        assert drawn.faults.tolist() == [0, Fault.NOT_FINITE, Fault.ALL_MASKED, Fault.NOT_FINITE, 0, 0]
        assert (drawn.tokens[1:4] == -1).all()
        assert drawn.tokens[4] == 13
        sparse = propose_rejection(logits, table, slots, np.arange(6), np.zeros(6, np.int32))
        assert (sparse.tokens[1:4] == -1).all()
        judged = verify_chains(logits, table, slots, np.arange(6), None, Trees.empty(6), np.zeros(6, np.int32))
        assert judged.faults.tolist() == drawn.faults.tolist()
        assert judged.walk.tokens[1:4].tolist() == [-1] * 3
    cold = table_of(replace(WARM, temperature=1e-12))
    assert draw(logits[:1], *cold, np.array([3], np.int32)).tokens[0] == logits[0].argmax()


def test_everything_masked_is_a_fault() -> None:
    table, slots = table_of(Sampling(bad_words=tuple((i,) for i in range(5))))
    drawn = draw(torch.zeros(1, 5), table, slots, np.zeros(1, np.int32), [Context(NO_INTS)])
    assert drawn.faults.tolist() == [Fault.ALL_MASKED]
    with pytest.raises(ValueError, match="tokens before"):
        draw(torch.zeros(1, 5), table, slots, np.zeros(1, np.int32))


def test_bad_words_without_tokens_are_ignored() -> None:
    table, slots = table_of(Sampling(bad_words=((), (4,))))
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0, 9.0]])
    assert draw(logits, table, slots, np.zeros(1, np.int32), [Context(NO_INTS)]).tokens.tolist() == [3]


@pytest.mark.parametrize("settings", TRUNCATIONS, ids=str)
def test_proposals_of_the_same_model_begin_with_its_draw(settings: dict[str, Any]) -> None:
    logits = logits_of(50, 300)
    table, slots = table_of(*[replace(WARM, **settings, seed=i) for i in range(49)], Sampling())
    positions = np.arange(50, dtype=np.int32)
    drawn = draw(logits, table, slots, positions)
    probs, _ = probabilities(logits, table, slots.astype(np.int64), positions.astype(np.int64), None)
    choosing = Choosing(table, slots.astype(np.int64), positions.astype(np.int64))
    best, best_scores = choosing.best(logits.numpy(), 0)
    assert np.array_equal(best, drawn.tokens)
    for width in (1, 3):
        tokens, scores = choosing.top(logits.numpy(), 0, width, 1)
        assert np.array_equal(tokens[:, 0], drawn.tokens)
        assert np.allclose(scores[:, 0], best_scores, atol=1e-4)
        assert (scores[:, :-1] >= scores[:, 1:]).all()
        for row in range(49):
            kept = tokens[row, scores[row] > -np.inf]
            assert len(kept) == min(width, int((probs[row] > 0).sum()))
            assert (probs[row, kept] > 0).all()
        assert np.array_equal(tokens[49], logits[49].topk(width).indices)


def test_sparse_draws_follow_the_row_they_ship() -> None:
    count = 20_000
    logits = logits_of(1, 100).expand(count, 100)
    table, slots = table_of(*[replace(WARM, top_p=0.9, seed=i) for i in range(count)])
    found = propose_rejection(logits, table, slots, np.full(count, 2), np.full(count, 1))
    assert np.allclose(found.probs.sum(axis=1), 1.0, atol=1e-6)
    kept = found.probs[0] > 0
    observed = np.bincount(found.tokens, minlength=100)[found.ids[0, kept]]
    expected = found.probs[0, kept].astype(np.float64)
    assert observed.sum() == count
    assert stats.chisquare(observed, expected / expected.sum() * count).pvalue > 1e-3


def test_sparse_rows_are_the_largest_entries() -> None:
    logits = logits_of(30, 200, seed=2)
    largest = logits.double().softmax(1).topk(16)
    ids, probs = sparse_q(logits)
    assert np.array_equal(ids, largest.indices.numpy())
    assert np.allclose(probs, largest.values.numpy(), atol=1e-6)
