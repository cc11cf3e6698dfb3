"""`--dequantise` serves what quantised weights stand for, and says so in no other way than by serving it."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from covey.contracts.errors import SettingError
from covey.server import Options, hub, preflight
from tests.models.tiny_models import build, generate, prompts
from tests.server.test_adapters import adapter, beside, greedy

BLOCK = 20


def fp8(folder: Path, shards: int = 1, family: str = "qwen2", **changes: Any) -> tuple[Path, Path]:
    """A model with blocks of eight-bit floats, as DeepSeek and Qwen write them, in files that cut weights from their
    scales; and the same model with plain weights."""
    reference = build(folder.parent / f"{folder.name}-plain", family, **changes)
    plain = load_file(reference / "model.safetensors")
    stored: dict[str, torch.Tensor] = {}
    for name, weight in list(plain.items()):
        if not name.endswith("proj.weight"):
            stored[name] = weight
            continue
        rows, columns = (-(-size // BLOCK) for size in weight.shape)
        scale = torch.rand(rows, columns) + 0.5
        wide = scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[: weight.shape[0], : weight.shape[1]]
        stored[name] = (weight / wide).to(torch.float8_e4m3fn)
        stored[f"{name}_scale_inv"] = scale
        plain[name] = stored[name].float() * wide
    save_file(plain, reference / "model.safetensors", metadata={"format": "pt"})
    folder.mkdir()
    config = json.loads((reference / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    else:
        where = {name: f"model-0000{place % shards + 1}.safetensors" for place, name in enumerate(stored)}
        for file in set(where.values()):
            save_file({name: each for name, each in stored.items() if where[name] == file}, folder / file)
        index = {"metadata": {}, "weight_map": where}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder, reference


@pytest.mark.parametrize("shards", [1, 2])
def test_its_text_is_that_of_the_plain_model(shards: int, tmp_path: Path) -> None:
    folder, reference = fp8(tmp_path / "fp8", shards)
    options = hub.with_folders(Options(model=str(folder), dequantise=True, state=tmp_path / "state"))
    preflight.weights(options, ("target",))
    rows = prompts(np.random.default_rng(1), 97, 3, 20)
    expected = [generate(reference, row, 8) for row in rows]
    assert greedy(options.model, rows) == expected
    again = hub.with_folders(Options(model=str(folder), dequantise=True, state=tmp_path / "state"))
    assert again.model == options.model
    assert [path.name[:4] for path in (tmp_path / "state" / "plain").iterdir()] == ["fp8-"]
    (folder / "generation_config.json").write_text('{"eos_token_id": 7}')
    later = Path(hub.folder(str(folder), tmp_path / "state", dequantise=True))
    assert (later / "generation_config.json").read_text() == '{"eos_token_id": 7}'


def test_an_adapter_s_base_may_be_quantised(tmp_path: Path) -> None:
    folder, reference = fp8(tmp_path / "fp8")
    name = "model.layers.0.self_attn.q_proj"
    made = adapter(tmp_path / "adapter", reference, [name], base_model_name_or_path=str(folder))
    rows = prompts(np.random.default_rng(1), 97, 9)
    with pytest.raises(SettingError, match=r"an adapter needs its base: .*quantised weights.*--dequantise"):
        hub.folder(str(made), tmp_path / "state")
    merged = hub.folder(str(made), tmp_path / "state", dequantise=True)
    assert greedy(merged, rows) == [beside(reference, made, {name: 2.0}, row, 8) for row in rows]


def test_it_is_rounded_once_to_the_type_of_the_configuration(tmp_path: Path) -> None:
    folder, reference = fp8(tmp_path / "fp8")
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"dtype": "float16"}))
    found = load_file(Path(hub.folder(str(folder), tmp_path, dequantise=True)) / "model.safetensors")
    expected = load_file(reference / "model.safetensors")
    assert found.keys() == expected.keys()
    name = "model.layers.1.mlp.up_proj.weight"
    assert found[name].dtype == torch.float16
    assert torch.equal(found[name], expected[name].half())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"quant_method": "hqq"}, "weights of quant_method hqq cannot be made plain: serve the one"),
        ({"quant_method": "fp8", "weight_block_size": [20, 5]}, "cannot be made plain: "),
    ],
)
def test_what_cannot_be_made_plain_is_refused_by_name(settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    folder, _ = fp8(tmp_path / "fp8")
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"quantization_config": settings}))
    with pytest.raises(SettingError, match=said) as caught:
        hub.folder(str(folder), tmp_path, dequantise=True)
    assert str(caught.value).startswith(f"{folder}: ")
    config.write_text(json.dumps({"model_type": "mamba", "quantization_config": settings}))
    with pytest.raises(SettingError, match="state-space"):
        hub.folder(str(folder), tmp_path, dequantise=True)


def test_asking_for_it_where_nothing_is_quantised_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(SettingError, match="--dequantise is for the model that --model"):
        hub.with_folders(Options(dequantise=True))
    folder = build(tmp_path / "model", "qwen2")
    with caplog.at_level(logging.INFO, "covey"):
        assert hub.folder(str(folder), tmp_path, dequantise=True) == str(folder)
    assert "plain as they are" in caplog.text
