"""What the kernels' interpreter does otherwise than a GPU."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from covey.gpu.kernels import INTERPRETED


def sum_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of tiles sum every element up in one order, as a tensor core does. The interpreter leaves that to a
    library for which it depends on the row."""
    if INTERPRETED:
        monkeypatch.setattr(np, "matmul", _product)


def _product(a: npt.NDArray[Any], b: npt.NDArray[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = np.einsum("mk,kn->mn", a, b, dtype=dtype)  # which asks no library
    return found


@cache
def patch_once() -> None:
    """The interpreter gives the language its own functions at each call of one kernel's function by another, though
    the launch has done so, which takes an eighth of its time. From now on it does so where nobody has."""
    if not INTERPRETED:
        return
    import triton.language as tl
    from triton.runtime import interpreter

    patch = interpreter._patch_lang

    def patch_where_needed(function: Any) -> Any:
        languages = [value for value in function.__globals__.values() if value is tl or value is tl.core]
        if languages and not any(tl.core.is_builtin(language.load) for language in languages):
            return interpreter._LangPatchScope()  # with nothing to restore
        return patch(function)

    interpreter._patch_lang = patch_where_needed
    options = interpreter.interpreter_builder.options
    if not options.debug:  # what looks for overflows then ends in an assertion that is skipped: a third of its time
        interpreter.interpreter_builder.options = replace(options, sanitize_overflow=False)
    _remember_types()


def _remember_types() -> None:
    """The interpreter builds and checks every value's type anew, which takes a third of its time: no longer where it
    has built the same before."""
    import triton.language as tl
    from triton.language.semantic import TritonSemantic
    from triton.runtime import interpreter

    build, broadcast, of_numpy = tl.block_type.__init__, TritonSemantic.broadcast_impl_value, interpreter._get_np_dtype
    built: dict[tuple[Any, ...], dict[str, Any]] = {}
    shapes: dict[tuple[int, ...], tuple[Any, Any]] = {(): (tl.constexpr(1), tl.tuple([]))}
    dtypes: dict[str, Any] = {}

    def remembered(self: Any, element: Any, shape: Any) -> None:
        key = (element.name, *(each.value if isinstance(each, tl.constexpr) else each for each in shape))
        if key not in built:
            build(self, element, shape)
            built[key] = dict(self.__dict__)
        self.__dict__.update(built[key], element_ty=element)

    def value(self: Any, handle: Any, type: Any) -> None:
        key = tuple(type.shape.values) if type.is_block() else ()
        if key not in shapes:
            shapes[key] = tl.constexpr(math.prod(key)), tl.tuple([tl.constexpr(size) for size in key])
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.numel, self.shape = shapes[key]

    def broadcast_unless_alike(self: Any, left: Any, right: Any) -> tuple[Any, Any]:
        one, two = left.type, right.type
        if one.is_block() and two.is_block() and one.shape.values == two.shape.values:
            return left, right
        return broadcast(self, left, right)  # type: ignore[no-any-return]

    def dtype(type: Any) -> Any:
        name = type.scalar.name
        if name not in dtypes:
            dtypes[name] = of_numpy(type)
        return dtypes[name]

    tl.block_type.__init__, tl.tensor.__init__ = remembered, value
    TritonSemantic.broadcast_impl_value, interpreter._get_np_dtype = broadcast_unless_alike, dtype
