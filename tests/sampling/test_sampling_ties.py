"""Equal logits have one order everywhere, the lowest id first: where nothing but the best token can be drawn, every
rule, truncation and drafter takes the same one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from covey.contracts.types import Floats, Ints, Sampling, Trees
from covey.drafters.choosing import Choosing
from covey.sampling.drawing import SettingsTable, draw
from covey.sampling.proposals import propose_rejection
from covey.sampling.rejection import verify_chains

VOCAB, ROWS = 90, 24
ONLY_THE_BEST = {
    "temperature 0": Sampling(),
    "temperature 1e-6": Sampling(temperature=1e-6),
    "the least temperature": Sampling(temperature=1e-45),
    "top_k 1": Sampling(temperature=1.0, top_k=1),
    "min_p 1": Sampling(temperature=1.0, min_p=1.0),
    "the least top_p": Sampling(temperature=1.0, top_p=1e-45),
    "all of them": Sampling(temperature=1e-6, top_k=1, top_p=1e-9, min_p=1.0),
}


def tied(seed: int, rows: int = ROWS) -> torch.Tensor:
    """Logits of which several share the first place, at random ids, the runners-up too."""
    rng = np.random.default_rng(seed)
    values = np.round(rng.normal(size=(rows, VOCAB)) * 2) / 2
    for row in values:
        row[rng.choice(VOCAB, int(rng.integers(2, 70)), replace=False)] = 9.0
    return torch.from_numpy(values).to(torch.bfloat16).float()


def table_of(sampling: Sampling, rows: int = ROWS) -> tuple[SettingsTable, Ints]:
    table = SettingsTable()
    return table, np.array([table.add(replace(sampling, seed=row), 0) for row in range(rows)], np.int32)


@pytest.mark.parametrize("name", ONLY_THE_BEST)
def test_the_lowest_id_wins_under_both_rules_and_is_drafted(name: str) -> None:
    for seed in range(4):
        logits, positions = tied(seed), np.arange(ROWS, dtype=np.int32)
        table, slots = table_of(ONLY_THE_BEST[name])
        lowest = logits.numpy().argmax(axis=1)
        assert np.array_equal(draw(logits, table, slots, positions).tokens, lowest)
        rounds = np.zeros(ROWS, np.int32)
        plain = verify_chains(logits, table, slots, positions, None, Trees.empty(ROWS), rounds)
        assert np.array_equal(plain.walk.tokens, lowest)
        sparse = propose_rejection(logits, table, slots, positions, rounds)
        assert np.array_equal(sparse.tokens, lowest)
        choosing = Choosing(table, slots.astype(np.int64), positions.astype(np.int64))
        if (table.temperature[slots] == 0).all():  # else what equals the last that is kept may be drafted too
            assert np.array_equal(choosing.best(logits, 0)[0], lowest)


@pytest.mark.parametrize("name", ONLY_THE_BEST)
def test_no_draft_makes_the_rejection_rule_take_another(name: str) -> None:
    """Chains of one token each, proposed from a drafter with ties of its own, or from none and so surely."""
    table, slots = table_of(ONLY_THE_BEST[name])
    rounds, positions = np.zeros(ROWS, np.int32), np.arange(ROWS, dtype=np.int32)
    places = np.repeat(slots, 2), np.repeat(positions, 2) + np.tile([0, 1], ROWS).astype(np.int32)
    for seed in range(4):
        logits = tied(seed, 2 * ROWS)
        lowest = logits.numpy().argmax(axis=1)
        sparse = propose_rejection(tied(seed + 100), table, slots, positions, rounds)
        chains = [(sparse.tokens, sparse.ids, sparse.probs)]
        for tokens in (lowest[::2].astype(np.int32), sparse.tokens):
            sure: Floats = np.ones((ROWS, 1), np.float32)
            chains.append((tokens, tokens[:, None], sure))
        for tokens, ids, probs in chains:
            trees = Trees(
                np.arange(ROWS + 1, dtype=np.int32), tokens, np.full(ROWS, -1, np.int32), q_ids=ids, q_probs=probs
            )
            walked = verify_chains(logits, table, *places, None, trees, rounds).walk
            assert np.array_equal(walked.tokens, lowest[walked.places])


def test_among_equals_a_warm_row_draws_all_of_those_that_its_cut_keeps() -> None:
    """Ties are cut by id, not left out: top_k 3 of five equal tokens are the three lowest, each as likely."""
    count = 6000
    logits = torch.full((1, VOCAB), -30.0)
    logits[0, [80, 7, 31, 2, 55]] = 1.0
    for sampling in (Sampling(temperature=1.0, top_k=3), Sampling(temperature=0.01, top_p=0.6)):
        table, slots = table_of(sampling, count)
        positions = np.full(count, 5, np.int32)
        for tokens in (
            draw(logits.expand(count, VOCAB), table, slots, positions).tokens,
            verify_chains(
                logits.expand(count, VOCAB),
                table,
                slots,
                positions,
                None,
                Trees.empty(count),
                np.zeros(count, np.int32),
            ).walk.tokens,
        ):
            counts = np.bincount(tokens, minlength=VOCAB)
            assert counts[[2, 7, 31]].sum() == count
            assert (np.abs(counts[[2, 7, 31]] - count / 3) < 5 * np.sqrt(count * 2 / 9)).all()
