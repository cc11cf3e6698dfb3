"""A target is served in its checkpoint's own type, and says transformers' text in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from covey.contracts.profile import TargetSettings
from covey.models import loading
from covey.target.runner import TargetRunner, typed
from tests.arrays import ints
from tests.models import tiny_models
from tests.target.driver import Text

CPU = torch.device("cpu")
HALF = "bfloat16" if loading.choose_dtype("auto", CPU) == torch.bfloat16 else "float32"


def test_a_float32_checkpoint_says_what_it_says_in_transformers(tmp_path: Path) -> None:
    folder = tiny_models.build(tmp_path, "llama", torch.float32)
    target = TargetRunner.load(folder, TargetSettings(threads=1, kv_blocks=16), token_budget=64, name="target")
    assert target.info().dtype == "float32"
    text = Text(target, [5, 9, 3, 7])
    for _ in range(60):
        text.go()
    assert text.tokens[4:] == tiny_models.generate(folder, ints(*text.tokens[:4]), 60, torch.float32)


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
