"""The kit for a GPU machine: which packages it carries, and that the steps are commands that exist."""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from covey_training.__main__ import parse
from loadtest.bench.__main__ import _parse

FILE = Path(__file__).parents[2] / "docker" / "kit"


@pytest.fixture(scope="module")
def kit() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("kit", str(FILE))
    spec = importlib.util.spec_from_loader("kit", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_it_carries_what_a_server_needs_and_nothing_that_only_pytorch_needs(kit: ModuleType) -> None:
    names = kit.needed("covey", {"torch", "transformers", "triton"}, "3.12")
    assert {"nvidia-pytriton", "tritonclient", "aiohttp", "starlette", "numba", "llvmlite", "numpy"} <= names
    assert not names & {"covey", "torch", "sympy", "transformers", "regex", "pytest", "tomli"}
    assert "tomli" in kit.needed("covey", {"torch"}, "3.10")
    assert kit.pins("3.12")["numpy"] == "==1.26.4"


def test_each_step_is_a_command_that_exists(kit: ModuleType, tmp_path: Path) -> None:
    given = argparse.Namespace(pair="", callers="1,4", size="tiny", device="cpu")
    seen = []
    for name, seconds, words in kit.steps(given, tmp_path):
        seen.append(name)
        assert seconds > 0
        if name == "pair":
            assert parse(words).agreement == 0.7
            (tmp_path / "pair").mkdir()
            (tmp_path / "pair" / "aligned.toml").touch()
        else:
            there = ["demo-cpu" if word.endswith("aligned.toml") else word for word in words]
            assert _parse(there)[0] == words[0]
    assert seen == ["pair", "trial", "speedup", "in-process", "peers", "real-trial", "real-speedup"]
    (tmp_path / "pair" / "aligned.toml").unlink()  # its making was stopped
    assert [name for name, _seconds, _words in kit.steps(given, tmp_path)] == ["real-trial", "real-speedup"]
