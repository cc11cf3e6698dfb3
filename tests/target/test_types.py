"""A target is served in its checkpoint's own type, and says transformers' text in it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from covey.contracts import profile
from covey.contracts.errors import SettingError
from covey.contracts.profile import DTYPE_VARIABLE, TargetSettings
from covey.contracts.types import Open, Sampling, TargetWork, Trees
from covey.models import loading
from covey.target.runner import TargetRunner, typed
from tests.models import tiny_models

CPU = torch.device("cpu")
HALF = "bfloat16" if loading.choose_dtype("auto", CPU) == torch.bfloat16 else "float32"


def test_a_float32_checkpoint_says_what_it_says_in_transformers(tmp_path: Path) -> None:
    folder = tiny_models.build(tmp_path, "llama", torch.float32)
    target = TargetRunner.load(folder, TargetSettings(threads=1, kv_blocks=16), token_budget=64, name="target")
    assert target.info().dtype == "float32"
    text = [5, 9, 3, 7]
    for sequence in range(1, 61):
        opens = (Open(1, np.array(text, np.int32), len(text), Sampling()),) if sequence == 1 else ()
        known = np.array([len(text)], np.int32)
        chunk = known if opens else np.array([1], np.int32)
        reply = target.step(TargetWork(np.array([1], np.int32), known, chunk, Trees.empty(1), opens, sequence=sequence))
        text += reply.tokens.tolist()
    assert text[4:] == tiny_models.generate(folder, np.array(text[:4], np.int32), 60, torch.float32)


@pytest.mark.parametrize(
    ("written", "served"), [("float32", "float32"), ("bfloat16", HALF), ("float16", "float32"), ("float64", "float64")]
)
@pytest.mark.parametrize("says", [True, False], ids=["by its configuration", "by its weights"])
def test_auto_is_the_checkpoint_s_own(tmp_path: Path, written: str, served: str, says: bool) -> None:
    folder = tiny_models.build(tmp_path, "llama", getattr(torch, written))
    if not says:
        config = json.loads((folder / "config.json").read_text())
        for key in ("dtype", "torch_dtype"):
            config.pop(key, None)
        (folder / "config.json").write_text(json.dumps(config))
    assert typed(folder, TargetSettings(device="cpu")).dtype == served
    assert typed(folder, TargetSettings(device="cpu", dtype="float64")).dtype == "float64", (
        "a name is taken at its word"
    )


def test_an_operator_asks_for_another_type_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert profile.from_environment().target.dtype == profile.AUTO
    monkeypatch.setenv(DTYPE_VARIABLE, "bfloat16")
    assert profile.from_environment().target.dtype == "bfloat16"
    monkeypatch.setenv(DTYPE_VARIABLE, "int8")
    with pytest.raises(SettingError, match=r"dtype: got 'int8', allowed: auto, bfloat16"):
        profile.from_environment()
