"""The bundled models: speculation never changes a token, whatever drafts, how deep, how wide and in whose company.

There is no tolerance at all, in whichever numerics mode the target came up. Every output is compared with the one that
its prompt, settings and seed give without speculation, computed once. Small batches of the sample have one setting
each. In large ones, and in the whole grid, requests of many settings join and leave one running batch, which takes a
fraction of the time and shows that no row minds its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import pytest
import torch

from tests.bundled import DRAFTERS, MAX_DEPTH, MAX_WIDTH, PROMPTS, SAMPLINGS, Case, Outputs, generate
from tests.grids import Row, pairwise, whole

ROWS = {1: 1, 8: 1, 32: 2}  # batch size -> requests for each setting, so that each one meets a full batch
GRID = {
    "drafter": DRAFTERS,
    "depth": range(1, MAX_DEPTH + 1),
    "width": range(1, MAX_WIDTH + 1),
    "batch": list(ROWS),
    "sampling": list(SAMPLINGS),
}
SAMPLE = pairwise(GRID, cost=lambda row: row["batch"])
SAMPLED = 20  # tokens of output in the sample
LENGTH = 32  # in the whole grid


class Bundled:
    """Generates, and knows what each request gives without speculation."""

    def __init__(self) -> None:
        self._plain: dict[tuple[str, int, int], list[int]] = {}

    def plain(self, cases: Sequence[Case], length: int) -> Outputs:
        """The cases' outputs without speculation; some of them alone too, which must make no difference."""
        keys = [(case.sampling, case.number, length) for case in cases]
        for sampling in SAMPLINGS:
            new = sorted({key for key in keys if key[0] == sampling} - self._plain.keys())
            if new:
                asked = [Case(number, sampling) for _, number, _ in new]
                self._plain |= zip(new, generate(asked, length, 32))
                some = slice(None, None, max(1, len(new) // 2))
                assert generate(asked[some], length, 1) == [self._plain[key] for key in new[some]]
        return [self._plain[key] for key in keys]

    def check(self, cases: Sequence[Case], length: int, batch: int) -> None:
        """Nothing in the cases' outputs shows that they were drafted."""
        for case, found, expected in zip(cases, generate(cases, length, batch), self.plain(cases, length)):
            assert found == expected, case


@pytest.fixture(scope="module")
def bundled() -> Iterator[Bundled]:
    """Passes of models as small as these take longer with two threads than with one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Bundled()
    torch.set_num_threads(before)


def spread(rows: Iterable[Mapping[str, Any]]) -> list[Case]:
    """One case for each row of the grid, with another prompt each."""
    return [
        Case(index * 29 % PROMPTS, row["sampling"], row["drafter"], row["depth"], row["width"])
        for index, row in enumerate(rows)
    ]


def alike(row: Row, place: int) -> list[Case]:
    """A full batch of one setting."""
    numbers = [(place * 29 + offset) % PROMPTS for offset in range(row["batch"])]
    return [Case(number, row["sampling"], row["drafter"], row["depth"], row["width"]) for number in numbers]


@pytest.mark.parametrize("batch", [1, 32, pytest.param(8, marks=pytest.mark.slow)])
def test_a_sample_that_covers_every_pair(bundled: Bundled, batch: int) -> None:
    rows = [row for row in SAMPLE if row["batch"] == batch]
    if batch == 32:
        bundled.check(spread(rows * 6), SAMPLED, batch)
    else:
        batches = [alike(row, place) for place, row in enumerate(rows)]
        bundled.plain(list(chain(*batches)), SAMPLED)  # at once, and so in company, whatever drafts alone
        for cases in batches:
            bundled.check(cases, SAMPLED, batch)


FULL = sorted((row for row in SAMPLE if row["batch"] == 32), key=lambda row: row["depth"] * row["width"])


@pytest.mark.parametrize("row", [*(pytest.param(row, marks=pytest.mark.slow) for row in FULL[:-1]), FULL[-1]])
def test_a_full_batch_of_one_setting(bundled: Bundled, row: Row) -> None:
    """The largest trees of all for `make test`."""
    bundled.check(alike(row, FULL.index(row)), SAMPLED, 32)


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("batch", ROWS)
@pytest.mark.parametrize("name", DRAFTERS)
def test_the_whole_grid(bundled: Bundled, name: str, batch: int) -> None:
    rows = [row for row in whole(GRID) if row["drafter"] == name and row["batch"] == batch]
    bundled.check(spread(rows * ROWS[batch]), LENGTH, batch)


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_two_hundred_prompts_of_128_tokens(bundled: Bundled, sampling: str) -> None:
    """All drafters side by side, in every depth and width; and one setting for all."""
    assert PROMPTS >= 200
    rows = [row for row in whole(GRID) if row["sampling"] == sampling and row["batch"] == 32]
    bundled.check(spread(rows), 128, 32)
    bundled.check([Case(number, sampling, "draft_general", 4) for number in range(PROMPTS)], 128, 32)
