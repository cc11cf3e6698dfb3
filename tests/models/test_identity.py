"""What a model's speed depends on makes its identity, and nothing else does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from covey.contracts.profile import TargetSettings
from covey.models import identity as identities
from covey.models.identity import STRIDE, of_model

SIZE = 3 * STRIDE


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.safetensors").write_bytes(bytes(SIZE))
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def test_the_same_model_is_the_same_wherever_it_lies(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    for path in folder.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    (other / "tokenizer.json").write_text("{}")
    assert of_model(folder, TargetSettings()) == of_model(other, TargetSettings())


@pytest.mark.parametrize("change", ["weights", "size", "config", "settings", "threads", "machine"])
def test_what_its_speed_depends_on_changes_it(change: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, settings = of_model(folder, TargetSettings()), TargetSettings()
    weights = folder / "model.safetensors"
    if change == "weights":  # trained on: most of them differ
        weights.write_bytes(bytes(2 * STRIDE) + b"\x01" * STRIDE)
    elif change == "size":
        weights.write_bytes(bytes(SIZE + 8))
    elif change == "config":
        (folder / "config.json").write_text("{ }")
    elif change == "settings":
        settings = TargetSettings(dtype="float32")
    elif change == "threads":
        monkeypatch.setattr(torch, "get_num_threads", lambda: 97)
    else:
        monkeypatch.setattr(identities, "machine", lambda: ["another"])
    assert of_model(folder, settings) != before
