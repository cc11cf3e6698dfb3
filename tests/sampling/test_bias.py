"""Bias on tokens' logits, and the likeliest tokens, held against the plain way, row by row."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from covey.contracts.types import LEAST_LOGPROB, Ints, Sampling
from covey.sampling.drawing import SettingsTable, draw
from covey.sampling.likeliest import likeliest
from covey.sampling.penalties import biased

VOCAB = 40
BIASES = ((), ((3, 2.5),), ((3, -100.0), (39, 100.0)), ((7, -0.1), (0, 1.0), (20, -99.9)), ())


def tables() -> tuple[SettingsTable, Ints]:
    table = SettingsTable(2)
    samplings = [
        Sampling(float(row % 2), seed=row, logit_bias=bias, top_logprobs=(0, 5, 1, VOCAB, 3)[row])
        for row, bias in enumerate(BIASES)
    ]
    return table, np.asarray([table.add(each, 0) for each in samplings], np.int32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bias_is_added_row_by_row_and_bans(dtype: torch.dtype) -> None:
    table, slots = tables()
    settings = slots[[1, 0, 2, 3, 2, 4]]
    logits = torch.randn(len(settings), VOCAB, dtype=dtype, generator=torch.Generator().manual_seed(1))
    before, expected = logits.clone(), logits.double().numpy().copy()
    for row, of in enumerate((1, 0, 2, 3, 2, 4)):
        for token, value in BIASES[of]:
            expected[row, token] = -np.inf if value == -100.0 else expected[row, token] + value
    found = biased(logits, table, settings)
    assert torch.equal(logits, before), "logits are others' too"
    assert torch.equal(found, torch.from_numpy(expected).to(dtype))
    for row in range(len(settings)):
        assert torch.equal(found[row : row + 1], biased(logits[row : row + 1], table, settings[row : row + 1]))
    plain = logits[[1, 5]]
    assert biased(plain, table, slots[[0, 4]]) is plain


def test_draws_are_those_of_the_changed_logits() -> None:
    table, slots = tables()
    rows = np.tile(np.arange(5), 200)
    logits = torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(2)) * 3
    positions = np.arange(len(rows), dtype=np.int32)
    found = draw(logits, table, slots[rows], positions)
    plain = SettingsTable(8)
    unbiased = np.asarray([plain.add(Sampling(float(row % 2), seed=row), 0) for row in range(5)], np.int32)
    expected = draw(biased(logits, table, slots[rows]), plain, unbiased[rows], positions)
    assert np.array_equal(found.tokens, expected.tokens)
    assert set(found.tokens[rows == 2].tolist()) == {39}
    assert len(set(found.tokens[rows == 3].tolist())) > 5


@pytest.mark.parametrize("seed", range(4))
def test_the_likeliest_are_the_model_s_own_and_the_lowest_ids_first_among_equals(seed: int) -> None:
    table, slots = tables()
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.integers(-3, 3, (60, VOCAB)).astype(np.float32))  # many are equal
    logits[5, :3] = -torch.inf
    settings = slots[rng.integers(0, 5, 60)]
    places = rng.permutation(60)[:30].astype(np.int32)
    found = likeliest(logits, table, settings, places)
    assert found.ids.shape == found.logprobs.shape == (30, VOCAB)
    for index, place in enumerate(places.tolist()):
        count = table.samplings[settings[place]].top_logprobs  # type: ignore[union-attr]
        row = logits[place].double().log_softmax(0).numpy()
        ids = sorted(range(VOCAB), key=lambda token: (-row[token], token))[:count]
        assert found.ids[index].tolist() == ids + [-1] * (VOCAB - count)
        assert np.allclose(found.logprobs[index, :count], np.maximum(row[ids], LEAST_LOGPROB), atol=1e-5)
        alone = likeliest(logits[place : place + 1], table, settings[place : place + 1], np.zeros(1, np.int32))
        assert alone.logprobs[0, :count].tobytes() == found.logprobs[index, :count].tobytes()
        assert alone.ids[0, :count].tolist() == ids
    assert likeliest(logits, table, slots[np.zeros(60, np.int32)], places).ids.shape == (30, 0), "nobody asks for any"
