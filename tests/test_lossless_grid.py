"""The bundled models: speculation never changes a token, whatever drafts, how deep, how wide and in whose company.

There is no tolerance at all, in whichever numerics mode the target came up. Every output is compared with the one that
its prompt, settings and seed give without speculation, computed once. In the sample a run has one setting for its whole
batch. In the whole grid requests of many settings join and leave one running batch, which takes a fraction of the time
and shows that no row minds its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest

from tests.bundled import DRAFTERS, MAX_DEPTH, MAX_WIDTH, PROMPTS, SAMPLINGS, Case, Outputs, Pending, Workers
from tests.grids import pairwise, whole

ROWS = {1: 1, 8: 1, 32: 2}  # batch size -> requests for each setting, so that each one meets a full batch
GRID = {
    "drafter": DRAFTERS,
    "depth": range(1, MAX_DEPTH + 1),
    "width": range(1, MAX_WIDTH + 1),
    "batch": list(ROWS),
    "sampling": list(SAMPLINGS),
}
SAMPLE = pairwise(GRID, cost=lambda row: row["batch"])
LENGTH = 32  # tokens of output


class Bundled:
    """Owns the processes and what they found without speculation."""

    def __init__(self) -> None:
        self.workers = Workers()
        self._plain: dict[tuple[str, int], Outputs] = {}

    def plain(self, sampling: str, length: int) -> Outputs:
        """Every prompt's output without speculation; some of them alone too, which must make no difference."""
        if (sampling, length) not in self._plain:
            cases = [Case(number, sampling) for number in range(PROMPTS)]
            some = slice(None, None, PROMPTS // 4)
            crowded = self.workers.begin(cases, length, 32)
            alone = self.workers.begin(cases[some], length, 1)
            self._plain[sampling, length] = crowded.outputs()
            assert alone.outputs() == self._plain[sampling, length][some]
        return self._plain[sampling, length]

    def check(self, found: Pending, length: int) -> None:
        """Nothing in the cases' outputs shows that they were drafted."""
        for case, tokens in zip(found.cases, found.outputs()):
            assert tokens == self.plain(case.sampling, length)[case.number], case


@pytest.fixture(scope="module")
def bundled() -> Iterator[Bundled]:
    made = Bundled()
    yield made
    made.workers.close()


def spread(rows: Iterable[Mapping[str, Any]]) -> list[Case]:
    """One case for each row of the grid, with another prompt each."""
    return [
        Case(index * 29 % PROMPTS, row["sampling"], row["drafter"], row["depth"], row["width"])
        for index, row in enumerate(rows)
    ]


@pytest.mark.parametrize("index", range(0, len(SAMPLE), 8))
def test_a_sample_that_covers_every_pair(bundled: Bundled, index: int) -> None:
    begun = []
    for place, row in enumerate(SAMPLE[index : index + 8], start=index):
        numbers = [(place * 29 + offset) % PROMPTS for offset in range(row["batch"])]
        cases = [Case(number, row["sampling"], row["drafter"], row["depth"], row["width"]) for number in numbers]
        begun.append(bundled.workers.begin(cases, LENGTH, row["batch"]))
    for found in begun:
        bundled.check(found, LENGTH)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("batch", ROWS)
@pytest.mark.parametrize("name", DRAFTERS)
def test_the_whole_grid(bundled: Bundled, name: str, batch: int) -> None:
    rows = [row for row in whole(GRID) if row["drafter"] == name and row["batch"] == batch]
    cases = spread(rows * ROWS[batch])
    bundled.check(bundled.workers.begin(cases, LENGTH, batch), LENGTH)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_two_hundred_prompts_of_128_tokens(bundled: Bundled, sampling: str) -> None:
    """All drafters side by side, in every depth and width; and one setting for all."""
    assert PROMPTS >= 200
    rows = [row for row in whole(GRID) if row["sampling"] == sampling and row["batch"] == 32]
    mixed = bundled.workers.begin(spread(rows), 128, 32)
    alike = bundled.workers.begin([Case(number, sampling, "draft_general", 4) for number in range(PROMPTS)], 128, 32)
    bundled.check(mixed, 128)
    bundled.check(alike, 128)
