"""Loads a backend's model.py without Triton: what it imports of Triton's is one fake."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import pytest

import covey

BACKENDS = Path(covey.__file__).parents[1]


def load(monkeypatch: pytest.MonkeyPatch, backend: str) -> tuple[ModuleType, Any]:
    """The module and its fake `triton_python_backend_utils`."""
    fake = MagicMock()
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", fake)
    from covey.tritonio import bls, log, metrics, outlets

    for part in (bls, log, metrics, outlets):  # a test before this one may have imported them
        monkeypatch.setattr(part, "pb_utils", fake)
    spec = importlib.util.spec_from_file_location(f"{backend}_model", BACKENDS / backend / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look for it
    spec.loader.exec_module(module)
    return module, fake
