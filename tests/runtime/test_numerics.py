"""What the questions of invariant products and passes cover."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

from covey.runtime import numerics
from covey.runtime.lanes import Lanes, Pass
from covey.runtime.numerics import Matrix, Room, linear_granules, passes_agree
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


def logits(work: Pass) -> torch.Tensor:
    """What a token's logits may depend on: its lane. Every pass must be a sound one."""
    lanes = work.lanes
    assert isinstance(lanes, Lanes)
    counts = np.diff(lanes.offsets)
    assert len(work.tokens) == len(work.positions) == len(work.slots) == lanes.offsets[-1]
    assert (counts > 0).all()
    assert (counts <= lanes.lengths).all()
    ends = (
        np.repeat(lanes.lengths - counts, counts) + np.arange(len(work.tokens)) - np.repeat(lanes.offsets[:-1], counts)
    )
    assert (work.positions == ends).all()
    return torch.from_numpy(np.stack([work.tokens, work.positions], 1).astype(np.float32))


@pytest.mark.parametrize(("span", "blocks"), [(0, 40), (16, 40), (64, 40), (64, 20), (640, 40)])
def test_the_first_row_reaches_across_a_span_where_it_can(span: int, blocks: int) -> None:
    reached, room = 0, Room(vocab=90, positions=200, blocks=blocks, block_size=4, limit=24, span=span)

    def noted(work: Pass) -> torch.Tensor:
        nonlocal reached
        reached = max(reached, int(work.positions.max()) + 1)
        return logits(work)

    assert passes_agree(noted, room)
    assert reached == (span + 12 if span + 12 <= min(200, 2 * blocks) and span > 12 else 24 if blocks == 40 else 20)


@pytest.mark.parametrize("block_size", [1, 3, 4, 16])
def test_passes_are_tried_in_any_room(block_size: int) -> None:
    for blocks in (1, 2, 3, 4, 5, 7, 9, 40):
        for limit in (4, 5, 9, 33, 200):
            room = Room(vocab=90, positions=100, blocks=blocks, block_size=block_size, limit=limit)
            seen: list[int] = []

            def noted(work: Pass, seen: list[int] = seen, limit: int = limit) -> torch.Tensor:
                assert work.size <= limit
                seen.append(work.size)
                return logits(work)

            assert passes_agree(noted, room)
            if len(set(seen)) > 1:
                assert not passes_agree(lambda work: logits(work) + work.size, room)
