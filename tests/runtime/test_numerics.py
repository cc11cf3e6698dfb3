"""What the question of invariant products covers."""

from __future__ import annotations

import logging

import pytest
import torch

from covey.runtime import numerics
from covey.runtime.numerics import Matrix, linear_granules
from covey.runtime.product import padded

CPU = torch.device("cpu")
WIDTH, COUNT = 8, 1 << 16


class Clock:
    """Stands in for `time`."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def matrix(odd: int = 0, clock: Clock | None = None, seconds: float = 0.0) -> Matrix:
    """Products that differ when there are `odd` rows, and take so long."""

    def apply(rows: torch.Tensor) -> torch.Tensor:
        if clock is not None:
            clock.now += seconds
        return rows + float(len(rows) == odd)

    return Matrix(apply, WIDTH, COUNT)


def first_granule(limit: int, *matrices: Matrix) -> int:
    return next(linear_granules(matrices, limit, torch.float32, CPU))


@pytest.mark.parametrize(("limit", "odd"), [(33, 36), (512, 352), (512, 56), (300, 320), (2048, 1408)])
def test_every_count_that_passes_are_padded_to_is_tried(limit: int, odd: int) -> None:
    assert odd in {padded(count, 1) for count in range(1, limit + 1)}
    assert first_granule(limit, matrix()) == 1
    assert first_granule(limit, matrix(), matrix(odd)) > 1


def test_a_slow_matrix_leaves_the_others_their_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    monkeypatch.setattr(numerics, "time", clock)
    with caplog.at_level(logging.INFO):
        assert first_granule(256, matrix(clock=clock, seconds=0.5), matrix(odd=224)) > 1
    assert "row counts of a 8192 x 8 matrix: 5 of 48 tried, up to 5 rows" in caplog.text
