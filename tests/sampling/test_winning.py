"""Who wins a race, without drawing it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from covey.contracts.types import Sampling
from covey.sampling.drawing import draw_unpenalised
from covey.sampling.settings import SettingsTable
from covey.sampling.winning import wins

SAMPLINGS = [
    Sampling(),
    Sampling(temperature=1.0),
    Sampling(temperature=0.6, repetition_penalty=1.3),
    Sampling(temperature=1.0, top_k=5),
    Sampling(temperature=1.0, top_p=0.9),
    Sampling(temperature=1.4, top_p=0.3),
    Sampling(temperature=0.8, top_k=12, top_p=0.8),
    Sampling(temperature=1.0, min_p=0.1),
    Sampling(temperature=1.2, top_k=30, top_p=0.95, min_p=0.01),
    Sampling(temperature=1.0, min_p=1.0),
]


@pytest.mark.parametrize("spread", [0.3, 2.0, 5.0])
@pytest.mark.parametrize("coarse", [False, True], ids=["distinct", "with equals"])
def test_a_token_wins_where_it_is_drawn(spread: float, coarse: bool) -> None:
    rng, rows, vocab = np.random.default_rng(1), 1500, 300
    logits = torch.from_numpy(rng.normal(0, spread, (rows, vocab))).float()
    if coarse:
        logits = (logits * 2).round() / 2
    table = SettingsTable()
    slots = [table.add(Sampling(**{**vars_of(each), "seed": number}), 1) for number, each in enumerate(SAMPLINGS)]
    settings = np.resize(np.asarray(slots), rows)
    positions = rng.integers(1, 5000, rows)
    drawn = draw_unpenalised(logits, table, settings, positions).astype(np.int64)
    assert wins(logits, drawn, table, settings, positions).all()
    plain = SettingsTable()  # what would be drawn without truncation is the closest rival
    free = [plain.add(Sampling(temperature=each.temperature, seed=at), 1) for at, each in enumerate(SAMPLINGS)]
    rivals = draw_unpenalised(logits, plain, np.resize(np.asarray(free), rows), positions).astype(np.int64)
    for given in (rivals, logits.argmax(1).numpy(), rng.integers(0, vocab, rows)):
        assert np.array_equal(wins(logits, given, table, settings, positions), given == drawn)
    assert (rivals != drawn).sum() > 50


def vars_of(sampling: Sampling) -> dict[str, object]:
    return {name: getattr(sampling, name) for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")}


def test_nothing_wins_where_logits_are_not_finite() -> None:
    logits = torch.zeros(4, 9)
    logits[1, 3] = torch.nan
    logits[2] = -torch.inf
    logits[3, 5] = -torch.inf
    table = SettingsTable()
    settings = np.full(4, table.add(Sampling(temperature=1.0, top_k=4, seed=2), 1))
    positions = np.full(4, 7)
    drawn = draw_unpenalised(logits, table, settings, positions).astype(np.int64)
    given = np.asarray([drawn[0], 0, 0, 5])
    assert wins(logits, given, table, settings, positions).tolist() == [True, False, False, False]
