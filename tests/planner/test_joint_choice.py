"""The set of drafters that a batch uses: beside the definition, spelled out, and all sets there are."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest

from covey.planner.drafters.beliefs import Array
from covey.planner.drafters.joint import GAIN, Prospects, best_set

DEPTHS = 5


def together(crowding: float, seconds: Array) -> Array:
    longest: Array = seconds.max(axis=0)
    return longest + crowding * (seconds.sum(axis=0) - longest)


def batch_of(seed: int, *, asked: dict[int, int] | None = None, crowding: float = 0.5) -> Prospects:
    rng = np.random.default_rng(seed)
    rows, drafters = int(rng.integers(1, 12)), int(rng.integers(2, 6))
    rates = rng.uniform(0.1, 0.95, (rows, drafters, 1))
    tokens = 1.0 + np.cumsum(rates ** np.arange(1, DEPTHS + 1), axis=2)
    tokens = np.concatenate([np.ones((rows, drafters, 1)), tokens], axis=2)
    asked = {each: count for each, count in (asked or {}).items() if each < drafters}
    most = rows + sum(asked.values())
    calls, steps = rng.uniform(0.0005, 0.004, (2, drafters, 1, 1))
    counts, depths = np.arange(most + 1)[:, None], np.arange(DEPTHS + 1)
    drafts = (calls + steps * depths) * (1 + 0.02 * counts) * (counts > 0) * (depths > 0)
    plain = 0.01 + 0.0003 * most * (depths + 1)
    others = sum(asked.values()) * (1.0 + 0.4 * np.arange(DEPTHS + 1))
    return Prospects(tokens, others, plain, drafts, asked, lambda seconds: together(crowding, seconds))


def value(batch: Prospects, chosen: Sequence[int]) -> float:
    """As defined, row by row."""
    counts = {each: batch.asked.get(each, 0) for each in chosen}
    emitted = batch.others.copy()
    for row in batch.tokens:
        counts[max(chosen, key=lambda each: row[each, -1])] += 1
        emitted += row[list(chosen)].max(axis=0)
    drafts = np.stack([batch.drafts[each, count] for each, count in counts.items()])
    speeds: Array = emitted / (batch.plain + batch.together(drafts))
    return float(speeds.max())


@pytest.mark.parametrize("asked", [{}, {1: 3}, {0: 1, 1: 2}], ids=str)
@pytest.mark.parametrize("seed", range(20))
def test_no_further_drafter_gains_and_each_one_did(seed: int, asked: dict[int, int]) -> None:
    batch = batch_of(seed, asked=asked)
    chosen, speed = best_set(batch)
    assert speed == pytest.approx(value(batch, chosen))
    for each in range(batch.tokens.shape[1]):
        if each not in chosen and len(batch.tokens) + len(batch.asked) > 1:
            assert value(batch, [*chosen, each]) <= GAIN * speed * (1 + 1e-9)
    least = max(1, len(batch.asked))
    assert set(chosen[: len(batch.asked)]) == set(batch.asked)
    for size in range(least + 1, len(chosen) + 1):
        assert value(batch, chosen[:size]) > GAIN * value(batch, chosen[: size - 1])


@pytest.mark.parametrize("crowding", [0.0, 0.3, 1.0])
def test_it_is_seldom_far_from_the_best_of_all_sets(crowding: float) -> None:
    shares = []
    for seed in range(100):
        batch = batch_of(seed, crowding=crowding)
        drafters = range(batch.tokens.shape[1])
        every = [each for size in drafters for each in combinations(drafters, size + 1)]
        shares.append(best_set(batch)[1] / max(value(batch, each) for each in every))
    assert np.mean(shares) > 0.99
    assert min(shares) > 0.9


def test_a_further_call_must_be_worth_what_it_costs_rows_that_are_not_moved() -> None:
    """One row would have a fifth more; fifteen that name their drafter would wait for its call."""
    depths = np.arange(2.0)
    tokens = np.stack([1.0 + 1.5 * depths, 1.0 + 2.0 * depths])[None]
    drafts = np.tile(0.001 * depths, (2, 17, 1))
    drafts[:, 0] = 0.0
    alone, beside = (
        best_set(Prospects(tokens, others, 0.01 + 0.0 * depths, drafts, {0: count}, lambda each: each.sum(axis=0)))
        for others, count in ((0.0 * depths, 1), (15 * (1.0 + 1.5 * depths), 15))
    )
    assert alone[0] == [0, 1]
    assert beside[0] == [0]
