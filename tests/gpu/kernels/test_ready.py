"""Kernels run here, or it is said what is in the way."""

from __future__ import annotations

import sys

import pytest
import torch

from covey.gpu import why_not
from covey.gpu.kernels import norms

WHERE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def test_they_run() -> None:
    assert why_not.__wrapped__(WHERE) == ""


def test_without_their_language(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "covey.gpu.kernels.norms")
    monkeypatch.setitem(sys.modules, "triton", None)
    assert why_not.__wrapped__(WHERE).endswith("install it with pip install 'covey[cuda]'")


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gate:
        def __getitem__(self, grid: object) -> object:
            raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(norms, "gate", Gate())
    assert why_not.__wrapped__(WHERE) == "RuntimeError: Failed to find C compiler"
