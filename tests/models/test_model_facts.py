"""A model that was examined before is read from its files alone, and computes the same bits."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from covey.models import facts
from covey.models import model as paged
from covey.models.model import PagedModel
from covey.models.modules import Modules
from covey.models.refusals import FAMILIES as FUSED
from covey.process.private import KEPT_VARIABLE
from tests.bundled import MODELS
from tests.models.tiny_models import FAMILIES, Reader, build, prompts

ROPE = {"rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(KEPT_VARIABLE, str(tmp_path / "kept"))
    return tmp_path / "kept" / "models"


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders whose modules were examined, one after the other."""
    found: list[Path] = []
    examine = Modules.examine
    monkeypatch.setattr(Modules, "examine", lambda self, text: found.append(self.folder) or examine(self, text))
    return found


def load(folder: Path, dtype: str = "float32") -> PagedModel:
    return PagedModel(folder, dtype=dtype, device="cpu", blocks=40, block_size=16, numerics="fast", max_pass_tokens=200)


def same(one: PagedModel, other: PagedModel) -> bool:
    """Whether all is that a caller sees, and every logit of a few rows, over chunks and single tokens."""
    told = ("shape", "end_ids", "vocab_size", "max_positions", "numerics", "dtype", "fused", "bytes_per_block")
    assert [getattr(one, name) for name in told] == [getattr(other, name) for name in told]
    rows = prompts(np.random.default_rng(3), one.vocab_size, 90, 33, 7)
    steps = [[(0, 0, 60), (1, 0, 32)], [(0, 60, 90), (1, 32, 33), (2, 0, 7)]]
    found, expected = (
        [torch.cat(reader.read(each)) for each in steps] for reader in (Reader(one, rows), Reader(other, rows))
    )
    return all(map(torch.equal, found, expected))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("family", sorted(FUSED))
def test_the_same_bits_both_ways(family: str, dtype: str, kept: Path, examined: list[Path], tmp_path: Path) -> None:
    folder = build(tmp_path / "model", family)
    first, second = load(folder, dtype), load(folder, dtype)
    assert len(examined) == 1
    assert second.fused
    assert same(first, second)
    assert len(list(kept.iterdir())) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_parameters": ROPE | LLAMA3},
        {"rope_parameters": ROPE | {"rope_type": "yarn"}},
        {"rope_parameters": ROPE | {"rope_type": "linear"}},
        {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-3},
        {"head_dim": 16, "num_key_value_heads": None, "eos_token_id": [3, 5]},
    ],
    ids=str,
)
@pytest.mark.usefixtures("kept")
def test_the_same_bits_of_unusual_llamas(changes: dict[str, object], examined: list[Path], tmp_path: Path) -> None:
    folder = build(tmp_path / "model", "llama", **changes)
    assert same(load(folder), load(folder))
    assert len(examined) == 1


@pytest.mark.parametrize("model", ["target", "draft_code"])
@pytest.mark.usefixtures("kept")
def test_the_same_bits_of_bundled_models(model: str, examined: list[Path]) -> None:
    folder = MODELS / model / "1"
    first, second = load(folder, "auto"), load(folder, "auto")
    assert same(first, second)
    assert len(examined) == 1


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - FUSED))
def test_other_families_are_examined_every_time(family: str, kept: Path, examined: list[Path], tmp_path: Path) -> None:
    folder = build(tmp_path / "model", family)
    assert not load(folder).fused
    assert not load(folder).fused
    assert len(examined) == 2
    assert not kept.exists()


def test_other_activations_and_weights_that_files_lack_are_examined_every_time(
    kept: Path, examined: list[Path], tmp_path: Path
) -> None:
    load(build(tmp_path / "gelu", "llama", hidden_act="gelu"))
    folder = build(tmp_path / "prefix", "qwen2")
    weights = load_file(folder / "model.safetensors")
    renamed = {name.removeprefix("model."): weight for name, weight in weights.items()}
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})  # transformers knows these names too
    load(folder)
    assert len(examined) == 2
    assert not kept.exists()


def test_what_changed_is_examined_again(kept: Path, examined: list[Path], tmp_path: Path) -> None:
    folder = build(tmp_path / "model", "llama")
    config = folder / "config.json"
    first = load(folder)
    config.write_text(json.dumps(json.loads(config.read_text()) | {"rms_norm_eps": 0.1}))
    assert not same(first, load(folder))
    build(folder, "llama", seed=1)
    assert not same(first, load(folder))
    load(folder, "bfloat16")
    (folder / "adapter_config.json").write_text("[]")  # whatever a library makes of it
    load(shutil.copytree(folder, tmp_path / "copy", ignore=shutil.ignore_patterns("adapter*")))
    assert len(examined) == 4
    assert len(list(kept.iterdir())) == 4


def test_versions_and_settings_are_part_of_what_is_known(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = build(tmp_path / "model", "llama")
    load(folder)
    with monkeypatch.context() as patch:
        patch.setattr(facts, "version", lambda name: f"another {name}")
        load(folder)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    load(folder)
    assert len(list(kept.iterdir())) == 3


@pytest.mark.parametrize("damage", ["", "{", "[]", "{}", "eps", "layer", "result"])
def test_what_is_damaged_is_examined_again(damage: str, kept: Path, examined: list[Path], tmp_path: Path) -> None:
    folder = build(tmp_path / "model", "llama")
    first = load(folder)
    (record,) = kept.iterdir()
    content = json.loads(record.read_text())
    if damage == "eps":
        content["known"]["eps"] *= 2
    elif damage == "layer":
        content["known"]["settings"].pop()
    elif damage == "result":
        content["known"]["result"] = "0" * 64
        content["digest"] = facts._digest(content["known"])
    record.write_text(json.dumps(content) if damage.isalpha() else damage)
    assert same(first, load(folder))
    assert len(examined) == 2
    load(folder)
    assert len(examined) == 2


@pytest.mark.usefixtures("kept")
def test_weights_that_lost_a_part_are_refused_as_ever(tmp_path: Path) -> None:
    folder = build(tmp_path / "model", "llama")
    load(folder)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(paged.SettingError, match="cannot be read"):
        load(folder)


def test_a_module_in_memory_is_not_what_a_folder_of_its_name_holds(
    kept: Path, examined: list[Path], tmp_path: Path
) -> None:
    folder = build(tmp_path / "model", "llama")
    for _ in range(2):
        modules = Modules.read(folder, dtype="float32", device="cpu")
        PagedModel(modules, dtype="float32", device="cpu", blocks=40, numerics="fast")
    assert len(examined) == 2
    assert not kept.exists()


def test_one_process_examines_at_a_time(kept: Path, tmp_path: Path) -> None:
    folder, other = build(tmp_path / "model", "llama"), build(tmp_path / "other", "gemma2")
    asked = folder, "float32", "cpu"
    seen: list[bool] = []

    def wait() -> None:
        with facts.turn(*asked) as first:
            seen.append(first)

    waiting = threading.Thread(target=wait)
    with facts.turn(*asked) as first, facts.turn(other, "float32", "cpu") as never:
        assert (first, never) == (True, False)
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        load(folder)
    waiting.join()
    with facts.turn(*asked) as again:
        assert (seen, again) == ([False], False)
    kept.chmod(0o500)
    with facts.turn(build(tmp_path / "third", "llama", seed=2), "float32", "cpu"):
        pass


SECOND = """
import sys
from dataclasses import replace
from covey.contracts import profile
from covey.drafters import load_drafter
from covey.target.opening import load_target
chosen = profile.load("demo-cpu")
chosen = replace(chosen, target=replace(chosen.target, numerics="fast", runtime=sys.argv[3]))
target, drafter = sys.argv[1:3]
load_target(target, chosen, name="target").close()
load_drafter("neural", drafter, target, chosen, name="draft_code")
print(*({"torch", "transformers", "torch._dynamo"} & set(sys.modules)))
"""


@pytest.mark.usefixtures("kept")
def test_a_second_load_imports_no_transformers_and_the_native_runtime_no_torch() -> None:
    folders = [str(MODELS / name / "1") for name in ("target", "draft_code")]
    first, second, other = (
        subprocess.run([sys.executable, "-c", SECOND, *folders, runtime], capture_output=True, text=True, check=True)
        for runtime in ("torch", "torch", "native")
    )
    assert "transformers" in first.stdout.split()
    assert second.stdout.split() == ["torch"]
    assert not other.stdout.split()
