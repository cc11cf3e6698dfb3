"""Products of matrices in bytes are the same sums on every CPU, whatever its instructions."""

from __future__ import annotations

import numpy as np
import pytest

from covey.models.native import tiles
from covey.models.native.matmul import COLUMNS, Multiplied, Rows, panel, put, tiles_of
from covey.models.native.tiles import BYTES, GROUP
from covey.models.native.weights import panels
from covey.models.native.words import compiled

pytestmark = pytest.mark.skipif(not tiles.has(BYTES), reason="this CPU multiplies no bytes")

ROWS = 12  # more than a tile has


@compiled
def multiplied(how, w, rows, count, width, y):  # type: ignore[no-untyped-def]
    panel(how, w, 0, rows, count, width, y, w)


@compiled
def filled(values, rows, at):  # type: ignore[no-untyped-def]
    put(BYTES, values, rows, 0, at)


@pytest.mark.parametrize("width", [64, 90, 576, 1600])
def test_sums_are_exact_for_any_number_of_rows(width: int) -> None:
    """The extreme bytes are among the weights: no sum of two products may be cut to 16 bits."""
    drawn = np.random.default_rng(width)
    weights = drawn.integers(-127, 128, (COLUMNS, width)).astype(np.int32)
    weights[:3] = np.array([127, -127, 127])[:, None]
    values = drawn.standard_normal((ROWS, width)).astype(np.float32)
    values[0] = 1.0
    groups = [slice(start, start + GROUP) for start in range(0, width, GROUP)]
    small, factors = (
        np.full((ROWS, 4 * GROUP * len(groups)), 99, np.uint8),
        np.zeros((ROWS, len(groups) * 2), np.float32),
    )
    rows = Rows(small.view(np.uint16), small.view(np.float32), small.view(np.int8), factors, factors.view(np.int32))
    for first in range(0, width, 2 * GROUP):
        filled(values[:, first : first + 2 * GROUP].copy(), rows, first)
    packed = panels((weights + 128).astype(np.uint8), BYTES).copy()
    largest = np.stack([np.abs(values[:, group]).max(axis=1) for group in groups], axis=1)
    whole = np.rint(values * np.repeat(np.float32(127) / largest, GROUP, axis=1)[:, :width]).astype(np.int32)
    expected = sum(
        (whole[:, group] @ weights[:, group].T).astype(np.float64) * factors[:, 2 * place, None]
        for place, group in enumerate(groups)
    )
    how = Multiplied.of(BYTES, tiles.addresses(tiles_of(BYTES)))
    firsts = []
    for count in range(1, ROWS + 1):
        found = np.zeros((ROWS, COLUMNS), np.float32)
        multiplied(how, packed.ctypes.data, rows, count, GROUP * len(groups), found)
        assert np.allclose(found[:count], expected[:count], rtol=1e-6, atol=1e-3)
        firsts.append(found[0].tobytes())
    assert len(set(firsts)) == 1, "the same bits in any company"
