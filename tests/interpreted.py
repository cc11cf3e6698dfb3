"""What the kernels' interpreter does otherwise than a GPU."""

from __future__ import annotations

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
