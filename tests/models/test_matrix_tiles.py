"""Products by matrix instructions (AMX): right, and the same bits for any number of rows."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from llvmlite import binding, ir
from numba.core import cgutils

from covey.models.native import amx, tiles
from covey.models.native.matmul import COLUMNS, Multiplied, panel, put, tiles_of
from covey.models.native.passes import _rows
from covey.models.native.tiles import AMX
from covey.models.native.weights import panels, words

pytestmark = pytest.mark.skipif(not tiles.has(AMX), reason="this CPU multiplies no matrices, or they are not allowed")

K = 2112  # three blocks, the last one short


def rounded(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return (words(values).astype(np.uint32) << 16).view(np.float32)


def products(weights: npt.NDArray[np.float32], values: npt.NDArray[np.float32], parts: list[int]) -> Any:
    """Return values [rows, K] times weights [32, K], computed in passes of these numbers of rows."""
    how, held = Multiplied.of(AMX, tiles.addresses(tiles_of(AMX))), panels(words(weights), AMX).copy()
    found, first = np.zeros((len(values), COLUMNS), np.float32), 0
    for count in parts:
        rows, y = _rows(count, K), np.full((count + 1, COLUMNS), 7, np.float32)
        put(AMX, values[first : first + count], rows, 0, 0)
        panel(how, held.ctypes.data, 0, rows, count, K, y, held.ctypes.data)
        assert (y[count] == 7).all(), "a row beyond"
        found[first : first + count], first = y[:count], first + count
    return found


@pytest.mark.parametrize("scale", [1.0, 1e-19])
def test_products_are_right_and_do_not_depend_on_the_number_of_rows(scale: float) -> None:
    """With small numbers most products are below the normal ones of float32."""
    rng = np.random.default_rng(5)
    spread = np.exp(rng.normal(0, 4, (75, K))) * scale
    values = (rng.normal(0, 1, (75, K)) * spread).astype(np.float32)
    weights = (rng.normal(0, 1, (COLUMNS, K)) * scale).astype(np.float32)
    alone = products(weights, values, [1] * 75)
    for parts in ([75], [33, 32, 10], [16, 17, 31, 2, 9], [48, 5, 15, 4, 3]):
        assert (products(weights, values, parts).view(np.int32) == alone.view(np.int32)).all(), parts
    exact = rounded(values).astype(np.float64) @ rounded(weights).astype(np.float64).T
    bound = np.abs(rounded(values)).astype(np.float64) @ np.abs(rounded(weights)).astype(np.float64).T
    assert (np.abs(alone - exact) <= 2e-6 * bound + K * 1.2e-38).all()
    assert np.abs(exact).max() > 1e3 * K * 1.2e-38


def given_shapes(shapes: bytes) -> None:
    """Give this thread's registers other shapes, as another library does."""
    module, pointer = ir.Module(), ir.PointerType()
    kind = ir.FunctionType(ir.VoidType(), [pointer])
    function = ir.Function(module, kind, "give")
    builder = ir.IRBuilder(function.append_basic_block())
    builder.call(cgutils.get_or_insert_function(module, kind, "llvm.x86.ldtilecfg"), function.args)
    builder.ret_void()
    machine = binding.Target.from_default_triple().create_target_machine(features="+amx-tile", jit=True)
    engine = binding.create_mcjit_compiler(binding.parse_assembly(str(module)), machine)
    engine.finalize_object()
    ctypes.CFUNCTYPE(None, ctypes.c_char_p)(engine.get_function_address("give"))(shapes)


def test_shapes_that_another_library_left_change_nothing() -> None:
    rng = np.random.default_rng(6)
    values, weights = (rng.normal(0, 1, (count, K)).astype(np.float32) for count in (20, COLUMNS))
    expected = products(weights, values, [20])
    left = bytearray(amx._shape(20))
    for width in (16, 18, 22):  # narrower, with as many rows
        left[width] = 32
    given_shapes(bytes(left))
    assert (products(weights, values, [20]) == expected).all()
