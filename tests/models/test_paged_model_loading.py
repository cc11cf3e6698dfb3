"""What is loaded, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tiny_models import Reader, build, generate, prompts

from covey.contracts.errors import SettingError, UnsupportedModel
from covey.models import refusals
from covey.models.loading import quiet
from covey.models.model import PagedModel
from covey.models.modules import Modules

LLAMA = {
    "model_type": "llama",
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def load(folder: Path | Modules, **settings: Any) -> PagedModel:
    return PagedModel(folder, **({"device": "cpu", "dtype": "float32", "blocks": 16, "numerics": "fast"} | settings))


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("config", "feature"),
    [
        ({"model_type": "t5", "is_encoder_decoder": True}, "encoder-decoder"),
        ({"model_type": "no_such_model"}, "no_such_model"),
        (LLAMA | {"per_layer_config": {"1": {"head_dim": 16}}}, "a layer of another shape"),
        (LLAMA | {"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantised"),
        (LLAMA | {"layer_types": ["full_attention", "chunked_attention"]}, "chunked_attention"),
        (LLAMA | {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "dynamic"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refused_by_name(config: dict[str, Any], feature: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModel, match=feature) as error:
        load(tmp_path)
    assert str(error.value).startswith(f"{tmp_path}: ")
    assert "is not supported: " in str(error.value) or "are not supported: " in str(error.value)


def test_missing_and_broken_weights_are_setting_errors(tmp_path: Path) -> None:
    path = build(tmp_path, "llama") / "model.safetensors"
    weights = load_file(path)
    name = "model.layers.0.mlp.up_proj.weight"
    del weights[name]
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(SettingError, match=f"the weights lack {name}"):
        load(tmp_path)
    weights[name] = torch.zeros(7, 32)
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(
        SettingError, match=rf"{name} is \(7, 32\), by config.json \(48, 32\): copy both from one model"
    ):
        load(tmp_path)
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(SettingError, match="the weights cannot be read"):
        load(tmp_path)


@pytest.mark.parametrize(("name", "value"), [("dtype", "int8"), ("device", "nonsense")])
def test_bad_settings_are_named(name: str, value: str, tmp_path: Path) -> None:
    build(tmp_path, "llama")
    with pytest.raises(SettingError, match=f"{name}: got '{value}'"):
        load(tmp_path, **{name: value})


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"pad_token_id": 5000}, "AssertionError: Padding_idx"), ({"hidden_act": "swishy"}, "KeyError: 'swishy'")],
)
def test_values_that_fit_no_module_are_one_line(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    edit(build(tmp_path, "llama") / "config.json", **changes)
    with pytest.raises(UnsupportedModel) as error:
        load(tmp_path)
    assert str(error.value).startswith(f"{tmp_path}: no model can be built as config.json says: {said}")
    assert "\n" not in str(error.value)


def test_end_ids_come_from_generation_config_first(tmp_path: Path) -> None:
    build(tmp_path, "llama")
    assert load(tmp_path).end_ids == (1,)
    edit(tmp_path / "generation_config.json", eos_token_id=[1, 7])
    assert load(tmp_path).end_ids == (1, 7)
    (tmp_path / "generation_config.json").unlink()
    edit(tmp_path / "config.json", eos_token_id=[5])
    assert load(tmp_path).end_ids == (5,)


def test_end_ids_are_tokens_of_the_vocabulary(tmp_path: Path) -> None:
    build(tmp_path, "llama")
    edit(tmp_path / "generation_config.json", eos_token_id=[97, -1, 96, 0])
    assert load(tmp_path).end_ids == (96, 0)
    edit(tmp_path / "generation_config.json", eos_token_id=["</s>"])
    with pytest.raises(SettingError, match=r"eos_token_id: got \['</s>'\], allowed: one token id or a list"):
        load(tmp_path)
    edit(tmp_path / "generation_config.json", eos_token_id=-1)
    assert load(tmp_path).end_ids == ()


def test_shards_are_read_as_one_file_is(tmp_path: Path) -> None:
    whole = build(tmp_path / "whole", "qwen2")
    with quiet():
        module = transformers.AutoModelForCausalLM.from_pretrained(whole)
        module.save_pretrained(tmp_path / "shards", max_shard_size="10KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    rows = prompts(np.random.default_rng(0), 97, 12)
    found = [Reader(load(folder), rows).read([(0, 0, 12)])[0] for folder in (whole, tmp_path / "shards")]
    assert found[0].equal(found[1])


def test_long_rotary_factors_end_the_context_where_they_set_in(tmp_path: Path) -> None:
    factors = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    build(tmp_path, "phi3", rope_parameters=factors, original_max_position_embeddings=64)
    assert load(tmp_path).max_positions == 64


def test_long_factors_for_all_texts_are_transformers_own_for_long_ones(tmp_path: Path) -> None:
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "long_factor": [4.0, 3.0, 2.0, 1.5], "factor": 4.0}
    sizes = {"original_max_position_embeddings": 64, "sliding_window": None}
    usual = build(tmp_path / "usual", "phi3", rope_parameters=rope | {"short_factor": [1.0] * 4}, **sizes)
    build(tmp_path / "long", "phi3", rope_parameters=rope | {"short_factor": rope["long_factor"]}, **sizes)
    model = load(tmp_path / "long", dtype="float64", blocks=64, block_size=4)
    assert model.max_positions == 256
    rows = prompts(np.random.default_rng(1), 97, 70, 90)
    expected = [generate(usual, row, 8) for row in rows]
    assert Reader(model, rows, room=8).greedy(8, 32, np.random.default_rng(2)) == expected


def test_a_configuration_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"config.json: cannot be read: No such file"):
        refusals.described(tmp_path)


@pytest.mark.parametrize("limit", [17, 47])
def test_models_load_for_odd_pass_sizes(limit: int, tmp_path: Path) -> None:
    """Padding of the trial at loading is not compared."""
    load(build(tmp_path, "gemma2"), blocks=40, block_size=4, max_pass_tokens=limit, numerics="auto")


def test_a_module_in_memory_is_run_as_its_folder_is(tmp_path: Path) -> None:
    module = transformers.AutoModelForCausalLM.from_pretrained(build(tmp_path, "llama"), dtype=torch.float32)
    rows = prompts(np.random.default_rng(5), 97, 21)
    models = [load(source) for source in (Modules.of(module.eval().requires_grad_(False), "in memory"), tmp_path)]
    found, expected = (Reader(model, rows).read([(0, 0, 21)])[0] for model in models)
    assert found.equal(expected)
