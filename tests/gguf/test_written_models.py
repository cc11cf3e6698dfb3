"""A folder that is written from a GGUF file computes what the model computes that the file was made from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as Kind
from gguf.quants import dequantize
from numpy.typing import NDArray
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from covey.gguf import file, folder, rotary
from covey.models import refusals
from tests.gguf import written

IDS = torch.arange(3, 43).reshape(1, -1)
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def loaded(at: Path) -> PreTrainedModel:
    refusals.servable(at)
    return AutoModelForCausalLM.from_pretrained(at, dtype=torch.float32).eval()


def assert_same(model: PreTrainedModel, at: Path) -> None:
    """The weights are equal, and so are the logits, which depend on every number of the configuration."""
    other = loaded(at)
    own, its = model.state_dict(), other.state_dict()
    assert own.keys() == its.keys()
    assert not [name for name in own if not torch.equal(own[name], its[name])]
    with torch.no_grad():
        assert torch.equal(model(IDS).logits, other(IDS).logits)


@pytest.mark.parametrize(
    ("architecture", "settings", "said"),
    [
        ("llama", {"tie_word_embeddings": True, "rope_theta": 50_000.0}, {"rope.freq_base": 50_000.0}),
        ("llama", {"head_dim": 16, "num_key_value_heads": 4}, {"rope.dimension_count": 16, "expert_count": 0}),
        ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, {"rope.scaling.factor": 4.0}),
        ("qwen2", {"tie_word_embeddings": True}, {}),
        (
            "qwen3",
            {
                "head_dim": 16,
                "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
            },
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 128,
            },
        ),
        (
            "gemma3",
            {"sliding_window": 8, "query_pre_attn_scalar": 16, "rope_theta": 70_000.0},
            {"rope.freq_base": 70_000.0},
        ),
    ],
)
def test_a_model_is_the_one_that_the_file_was_made_from(
    architecture: str, settings: dict[str, Any], said: dict[str, Any], tmp_path: Path
) -> None:
    model = written.model(architecture, **settings)
    folder.write(written.tiny(tmp_path / "tiny.gguf", architecture, model, said), tmp_path / "folder")
    assert_same(model, tmp_path / "folder")


def test_scaled_frequencies_of_llama_3_are_those_of_its_configuration(tmp_path: Path) -> None:
    model = written.model("llama", head_dim=64, rope_theta=500_000.0, rope_scaling=dict(LLAMA3))
    inverse = model.model.rotary_emb.inv_freq
    divisors = (500_000.0 ** -(torch.arange(0, 64, 2) / 64) / inverse).numpy()
    said, numbers = {"rope.freq_base": 500_000.0}, {rotary.FREQUENCIES: divisors}
    folder.write(written.tiny(tmp_path / "tiny.gguf", "llama", model, said, numbers), tmp_path / "folder")
    assert json.loads((tmp_path / "folder" / "config.json").read_text())["rope_scaling"] == LLAMA3
    assert_same(model, tmp_path / "folder")


def blocks(kind: Kind, rows: int, columns: int, draw: np.random.Generator) -> NDArray[np.uint8]:
    """Return random blocks; their scales, which are numbers of 16 bits, are finite."""
    block, width = GGML_QUANT_SIZES[kind]
    raw = draw.integers(0, 256, (rows * columns // block, width), np.uint8)
    raw[:, 1::2] &= 0xBB  # no number of 16 bits has the exponent of infinity
    raw[:, 0::2] &= 0xBB
    return raw.reshape(rows, -1)


@pytest.mark.parametrize("kind", file.KINDS, ids=lambda kind: kind.name)
def test_each_type_of_blocks_is_widened_to_bfloat16(kind: Kind, tmp_path: Path) -> None:
    sizes = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1}
    model = written.model("llama", tie_word_embeddings=True, **sizes)
    numbers, draw = written.tensors("llama", model), np.random.default_rng(3)
    raw = {name: blocks(kind, *array.shape, draw) for name, array in numbers.items() if array.ndim > 1}
    folder.write(written.tiny(tmp_path / "t.gguf", of=model, numbers=raw, kind=kind), tmp_path / "folder")
    own = load_file(tmp_path / "folder" / "model.safetensors")
    dtype = {Kind.F32: torch.float32, Kind.F16: torch.float16}.get(kind, torch.bfloat16)
    assert {weight.dtype for weight in own.values()} == {dtype}
    for name, array in raw.items():
        wide = dequantize(array, kind)
        heads = {"blk.0.attn_q.weight": 4, "blk.0.attn_k.weight": 2}.get(name)
        if heads:  # place by place: row 2 i of a head is row i of its first half, row 2 i + 1 of its second one
            half = len(wide) // heads // 2
            order = [head * 2 * half + 2 * i + side for head in range(heads) for side in (0, 1) for i in range(half)]
            wide = wide[order]
        stem = {value: key for key, value in written.NAMES.items()}[name.removeprefix("blk.0.").removesuffix(".weight")]
        its = own[f"{stem if stem.startswith('model.') else 'model.layers.0.' + stem}.weight"]
        assert torch.equal(its, torch.from_numpy(wide).to(dtype)), name


@pytest.mark.parametrize(
    ("kind", "change", "dtype"),
    [
        (Kind.F32, 0.0, torch.bfloat16),
        (Kind.F32, 2.0**-10, torch.float16),
        (Kind.F32, 2.0**-20, torch.float32),
        (Kind.F16, 0.0, torch.bfloat16),
        (Kind.F16, 2.0**-10, torch.float16),
    ],
)
def test_wide_files_keep_their_values_in_the_smallest_type(
    kind: Kind, change: float, dtype: torch.dtype, tmp_path: Path
) -> None:
    model = written.model("llama", tie_word_embeddings=True)
    for weight in model.parameters():
        weight.data = (weight.data * 32).round() / 32  # no value is too small for float16
    model.model.layers[1].mlp.up_proj.weight.data[3, 5] = 1.0 + change
    folder.write(written.tiny(tmp_path / "tiny.gguf", of=model, kind=kind), tmp_path / "folder")
    assert {weight.dtype for weight in load_file(tmp_path / "folder" / "model.safetensors").values()} == {dtype}
    assert_same(model, tmp_path / "folder")


def test_large_weights_are_written_in_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "MOST_BYTES", 20_000)
    model = written.model("qwen3", tie_word_embeddings=False)
    folder.write(written.tiny(tmp_path / "tiny.gguf", "qwen3", model), tmp_path / "folder")
    assert len(refusals.weight_files(tmp_path / "folder")) > 2
    assert_same(model, tmp_path / "folder")
