from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch

from covey.runtimes import budget
from tests.drafters.neural_reference import Reference
from tests.models.tiny_models import build


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module", autouse=True)
def _asks_here() -> Iterator[None]:
    """A program that is to import PyTorch runs in this process, which has it: that saves seconds for each drafter."""
    with pytest.MonkeyPatch.context() as patch:

        def asked(code: str, *words: str) -> Any:
            patch.setattr(sys, "argv", ["-c", *words])
            with redirect_stdout(StringIO()) as said:
                exec(code, {})
            return json.loads(said.getvalue())

        patch.setattr(budget, "_asked", asked)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(
        tmp_path_factory.mktemp("models") / "llama", "llama", num_hidden_layers=1, max_position_embeddings=1024
    )


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("models") / "deep", "llama", num_hidden_layers=2, max_position_embeddings=1024)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("models") / "gemma", "gemma3", num_hidden_layers=2)


@pytest.fixture(scope="module")
def reference(folder: Path) -> Reference:
    return Reference(folder)
