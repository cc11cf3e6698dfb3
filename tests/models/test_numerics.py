"""What the questions of invariant products and passes cover."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pytest
import torch

from covey.models.agreement import Room, passes_agree
from covey.models.attention import Shape, Tiling
from covey.models.lanes import Lanes, Pass
from covey.models.numerics import (
    Matrix,
    attention_agreement,
    attention_tilings,
    linear_granules,
)
from covey.models.rows import padded

CPU = torch.device("cpu")
WIDTH, COUNT = 8, 1 << 16


def matrix(odd: int = 0) -> Matrix:
    """Products that differ when there are `odd` rows."""

    def apply(rows: torch.Tensor) -> torch.Tensor:
        return rows + float(len(rows) == odd)

    return Matrix(apply, WIDTH, COUNT)


def first_granule(limit: int, *matrices: Matrix) -> int:
    return next(linear_granules(matrices, limit, torch.float32, CPU))


@pytest.mark.parametrize(("limit", "odd"), [(33, 36), (512, 352), (512, 56), (300, 320), (2048, 1408)])
def test_every_count_that_passes_are_padded_to_is_tried(limit: int, odd: int) -> None:
    assert odd in {padded(count, 1) for count in range(1, limit + 1)}
    assert first_granule(limit, matrix()) == 1
    assert first_granule(limit, matrix(), matrix(odd)) > 1


@pytest.mark.parametrize("few", [1, 2, 5, 7, 12])
def test_small_matrices_of_which_one_result_in_40_000_differs_are_seen(few: int) -> None:
    """PyTorch's products on AMX differ so seldom that one trial of all row counts misses it."""

    def apply(rows: torch.Tensor) -> torch.Tensor:
        rows = torch.cat([rows, rows + 1, rows + 2], 1)
        other = rows.view(torch.int32) % 40_000 == 7
        return rows + (other if len(rows) == few else torch.zeros_like(other))

    assert first_granule(512, Matrix(apply, 64, 64 * 192)) > 1


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


HEADS = Shape(heads=4, kv_heads=2, head_dim=32)
Library: TypeAlias = Callable[[Callable[[int, int], bool]], None]


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    """Replaces the hardware's products by ones that are right to the last bit, whatever their shape. For the rows and
    keys that `differs` names, one result in 4,001 is rounded otherwise, about as seldom as on real hardware."""
    bmm, baddbmm = torch.bmm, torch.baddbmm

    def put(differs: Callable[[int, int], bool]) -> None:
        def weigh(weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            found = bmm(weights.double(), values.double()).float()
            if differs(weights.shape[1], weights.shape[2]):
                some = found.view(-1)[::4001]
                some.copy_(torch.nextafter(some, torch.full_like(some, torch.inf)))
            return found

        def score(mask: torch.Tensor, queries: torch.Tensor, keys: torch.Tensor, alpha: float) -> torch.Tensor:
            return baddbmm(mask.double(), queries.double(), keys.double(), alpha=alpha).float()

        monkeypatch.setattr(torch, "bmm", weigh)
        monkeypatch.setattr(torch, "baddbmm", score)

    return put


def agreement(tiling: Tiling) -> int:
    return attention_agreement(HEADS, tiling, 1400, torch.float32, CPU)


def test_a_library_that_changes_its_order_within_a_span_is_found_out(library: Library) -> None:
    library(lambda _, keys: keys > 128)
    assert not agreement(Tiling(queries=1, keys=32, span=256))
    assert agreement(Tiling(queries=1, keys=32, span=128)) > 100_000


@pytest.mark.parametrize("odd", [2, 128, *(pytest.param(odd, marks=pytest.mark.slow) for odd in (14, 38))])
def test_a_library_that_treats_one_number_of_rows_otherwise_is_found_out(odd: int, library: Library) -> None:
    library(lambda rows, _: rows == odd)
    assert not agreement(Tiling(queries=1, keys=32, span=128))


def test_a_softmax_that_looks_at_its_row_s_length_is_found_out(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    library(lambda *_: False)
    softmax = torch.softmax

    def longer(scores: torch.Tensor, dim: int) -> torch.Tensor:
        found = softmax(scores, dim)
        return found if scores.shape[-1] <= 1024 else torch.nextafter(found, torch.zeros_like(found))

    tiling = next(iter(attention_tilings(HEADS)))
    assert agreement(tiling)
    monkeypatch.setattr(torch, "softmax", longer)
    assert not agreement(tiling)


def _scores_depend_on_keys(shape: Shape, dtype: torch.dtype) -> bool:
    generator = torch.Generator().manual_seed(2)
    queries, keys = (torch.randn(32, n, shape.head_dim, generator=generator, dtype=dtype) for n in (16, 1024))
    whole = torch.bmm(queries, keys.transpose(1, 2))
    return any(
        not torch.equal(torch.bmm(queries, keys[:, :n].contiguous().transpose(1, 2)), whole[:, :, :n])
        for n in (32, 64, 128, 256, 512)
    )


@pytest.mark.parametrize(
    ("shape", "dtype", "block_size"),
    [
        (Shape(8, 4, 32), torch.float32, 48),
        (Shape(12, 2, 64), torch.float32, 16),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (Shape(8, 4, 32), torch.float32, 16),
                (Shape(8, 4, 32), torch.float64, 16),
                (Shape(8, 2, 128), torch.float32, 16),
                (Shape(4, 1, 256), torch.float32, 16),
            )
        ),
    ],
)
def test_attention_is_invariant_under_some_tiling(shape: Shape, dtype: torch.dtype, block_size: int) -> None:
    """A library that scales another factor where there are more queries than keys must not be let to."""
    if dtype == torch.float64 and _scores_depend_on_keys(shape, dtype):
        pytest.skip("this CPU's products in float64 depend on how many keys are beside: no tiling can mend that")
    assert any(
        attention_agreement(shape, tiling, 900, dtype, CPU, block_size=block_size)
        for tiling in attention_tilings(shape, block_size)
    )


@pytest.mark.parametrize("changes_at", [4096, *(pytest.param(at, marks=pytest.mark.slow) for at in (1024, 2048))])
def test_a_change_at_far_lengths_is_found_out_when_there_is_no_time(
    changes_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    baddbmm = torch.baddbmm

    def score(mask: torch.Tensor, queries: torch.Tensor, keys: torch.Tensor, alpha: float) -> torch.Tensor:
        found = baddbmm(mask, queries, keys, alpha=alpha)
        if keys.shape[2] > changes_at:
            some = found.view(-1)[::4001]
            some.copy_(torch.nextafter(some, torch.full_like(some, torch.inf)))
        return found

    tiling = next(
        each for each in attention_tilings(HEADS) if attention_agreement(HEADS, each, 600, torch.float32, CPU)
    )
    monkeypatch.setattr(torch, "baddbmm", score)
    assert not attention_agreement(HEADS, tiling, 8192, torch.float32, CPU, seconds=0.0)
