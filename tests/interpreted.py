"""What the kernels' interpreter does otherwise than a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from covey.models.kernels import INTERPRETED


def sum_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of tiles sum every element up in one order, as a tensor core does. The interpreter leaves that to a
    library for which it depends on the row."""
    if INTERPRETED:
        monkeypatch.setattr(np, "matmul", _product)


def _product(a: npt.NDArray[Any], b: npt.NDArray[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = np.einsum("mk,kn->mn", a, b, dtype=dtype)  # which asks no library
    return found


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
