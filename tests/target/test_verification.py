"""What rows emit whose logits go wrong on the way."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from covey.contracts.types import Ints, Rule, Sampling, Trees
from covey.sampling.drawing import SettingsTable
from covey.target.verification import Places, Verified, verify
from tests.arrays import ints

VOCAB = 8
SAYS = [5, 2, 6]  # after as many tokens
PROMPT = 3


def logits_after(said: int, broken_after: int) -> torch.Tensor:
    logits = torch.zeros(VOCAB)
    logits[SAYS[said % len(SAYS)]] = 60.0
    return logits if said < broken_after else logits * torch.nan


def round_of(said: list[int], drafts: list[list[int]], rule: Rule, heat: float, broken_after: list[int]) -> Verified:
    """One round over rows that have said so much; each row's draft is a chain."""
    table = SettingsTable()
    sizes = [len(draft) for draft in drafts]
    slots = [table.add(Sampling(temperature=heat, seed=row, rule=rule, logprobs=True), PROMPT) for row in range(3)]
    at = [(row, said[row] + depth) for row, size in enumerate(sizes) for depth in range(size + 1)]
    places = Places(
        torch.stack([logits_after(count, broken_after[row]) for row, count in at]),
        ints(*(slots[row] for row, _ in at)),
        ints(*(PROMPT + count for _, count in at)),
        None,
    )
    trees = Trees(
        np.append(0, np.cumsum(sizes)).astype(np.int32),
        ints(*(token for draft in drafts for token in draft)),
        ints(*(parent for size in sizes for parent in range(-1, size - 1))),
    )
    return verify(places, table, trees, ints(0, 0, 0))


def by_row(values: Ints, sizes: Ints) -> list[list[int]]:
    return [part.tolist() for part in np.split(values, np.cumsum(sizes)[:-1])]


@pytest.mark.parametrize("rule", Rule)
@pytest.mark.parametrize("heat", [0.0, 1.0])
def test_what_was_accepted_before_a_fault_is_emitted(rule: Rule, heat: float) -> None:
    """Row 0 breaks behind its two accepted tokens, row 1 at once, row 2 never."""
    broken_after = [2, 0, 9]
    plain: list[list[int]] = [[], [], []]
    faulty = [False] * 3
    for _ in range(3):
        found = round_of([len(row) for row in plain], [[], [], []], rule, heat, broken_after)
        for row in range(3):
            faulty[row] |= bool(found.faulty[row])
            plain[row] += by_row(found.tokens, found.emitted)[row]
    assert plain == [[5, 2], [], [5, 2, 6]]

    found = round_of([0, 0, 0], [[5, 2, 6], [5, 2], [5, 2]], rule, heat, broken_after)
    assert found.faulty.tolist() == [False, True, False]
    assert by_row(found.tokens, found.emitted) == plain
    assert found.accepted.tolist() == [1, 0, 2]
    assert by_row(found.path, found.accepted) == [[0], [], [0, 1]]
    assert np.isfinite(found.logprobs).all()
    assert len(found.logprobs) == len(found.tokens)
    after = round_of([2, 0, 3], [[6], [], []], rule, heat, broken_after)
    assert after.faulty.tolist() == [True, True, False]
