"""An adapter merged into its base is the base with the adapter beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from covey.contracts.errors import SettingError
from covey.models.loading import quiet
from covey.models.model import PagedModel
from covey.server import adapters, hub
from tests.models.tiny_models import Reader, build, prompts

RANK = 3


def adapter(at: Path, base: Path, linears: list[str], **config: Any) -> Path:
    """Random matrices for those linear layers of a base's folder, as peft saves them."""
    with quiet():
        module = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float64)
    torch.manual_seed(1)
    held = {}
    for name in linears:
        inputs, outputs = _sizes(module.get_submodule(name))
        held[f"base_model.model.{name}.lora_A.weight"] = torch.randn(RANK, inputs) * inputs**-0.5
        held[f"base_model.model.{name}.lora_B.weight"] = torch.randn(outputs, RANK) * RANK**-0.5
    at.mkdir(parents=True)
    save_file(held, at / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "base_model_name_or_path": str(base), "r": RANK, "lora_alpha": 6}
    (at / "adapter_config.json").write_text(json.dumps(settings | config))
    return at


def _sizes(linear: Any) -> tuple[int, int]:
    shape = tuple(linear.weight.shape)
    return (shape[0], shape[1]) if type(linear).__name__ == "Conv1D" else (shape[1], shape[0])


def beside(base: Path, adapter: Path, scales: dict[str, float], prompt: Any, count: int) -> list[int]:
    """Greedy tokens of the base with the adapter's products added to its layers' results, nothing merged."""
    held = load_file(adapter / "adapter_model.safetensors")
    with quiet(), torch.inference_mode():
        module = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float64, attn_implementation="eager")
        module.generation_config.eos_token_id = None
        for name, scale in scales.items():
            a, b = (held[f"base_model.model.{name}.lora_{each}.weight"].double() for each in "AB")

            def add(_: Any, given: Any, out: Any, a: Any = a, b: Any = b, scale: float = scale) -> Any:
                return out + scale * (given[0] @ a.T @ b.T)

            module.get_submodule(name).register_forward_hook(add)
        ids = torch.from_numpy(prompt.astype(np.int64))[None]
        found = module.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count)
    return [int(i) for i in found[0, len(prompt) :]]


def greedy(folder: str | Path, rows: list[Any]) -> list[list[int]]:
    settings: dict[str, Any] = {"dtype": "float64", "device": "cpu", "blocks": 32, "block_size": 4, "numerics": "fast"}
    return Reader(PagedModel(folder, **settings), rows, room=8).greedy(8, 7, np.random.default_rng(0))


def in_shards(folder: Path) -> Path:
    with quiet():
        AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder, max_shard_size="30KB")
    (folder / "model.safetensors").unlink()
    return folder


@pytest.mark.parametrize("family", ["qwen2", "gpt2"])
def test_its_text_is_that_of_the_adapter_beside_the_base(family: str, tmp_path: Path) -> None:
    base = build(tmp_path / "base", family)
    if family == "gpt2":  # whose layers are transposed; and files have shorter names
        scales = {"transformer.h.0.attn.c_attn": 2.0, "transformer.h.2.attn.c_proj": 2.0}
        more: dict[str, Any] = {}
        weights = load_file(base / "model.safetensors")
        weights = {name.removeprefix("transformer."): weight for name, weight in weights.items()}
        save_file(weights, base / "model.safetensors", metadata={"format": "pt"})
    else:
        in_shards(base)
        first, last, down = "layers.0.self_attn.q_proj", "layers.2.self_attn.q_proj", "layers.1.mlp.down_proj"
        root = 3**0.5
        scales = {f"model.{first}": 6 / root, f"model.{last}": 1.5 / root, f"model.{down}": 9 / root}
        more = {"use_rslora": True, "alpha_pattern": {"2.self_attn.q_proj": 1.5, "down_proj": 9}}
    made = adapter(tmp_path / "adapter", base, list(scales), **more)
    folder = hub.folder(str(made), tmp_path / "state")
    rows = prompts(np.random.default_rng(1), 97, 3, 20)
    expected = [beside(base, made, scales, row, 8) for row in rows]
    assert greedy(folder, rows) == expected
    assert greedy(base, rows) != expected


def test_it_is_made_once_links_what_it_leaves_and_follows_its_parts(tmp_path: Path) -> None:
    base = in_shards(build(tmp_path / "base", "qwen2"))
    (base / "tokenizer.json").write_text("the base's")
    made = adapter(tmp_path / "adapter", base, ["model.layers.0.mlp.up_proj"])
    state = tmp_path / "state"
    first = Path(hub.folder(str(made), state))
    assert hub.folder(str(made), state) == str(first)
    links = [path for path in first.glob("*.safetensors") if path.is_symlink()]
    assert 0 < len(links) < len(list(first.glob("*.safetensors")))
    assert (first / "tokenizer.json").read_text() == "the base's"
    (made / "tokenizer.json").write_text("its own")
    second = Path(hub.folder(str(made), state))
    assert (second / "tokenizer.json").read_text() == "its own"
    config = made / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"lora_alpha": 1}))
    assert len({first, second, Path(hub.folder(str(made), state))}) == 3
    assert sorted(path.name[:8] for path in (state / "merged").iterdir()) == ["adapter-"] * 3


def test_a_rounded_weight_is_rounded_once(tmp_path: Path) -> None:
    base = build(tmp_path / "base", "qwen2", torch.bfloat16)
    name = "model.layers.0.mlp.up_proj"
    made = adapter(tmp_path / "adapter", base, [name])
    held = load_file(made / "adapter_model.safetensors")
    b, a = (held[f"base_model.model.{name}.lora_{each}.weight"] for each in "BA")
    weights = load_file(Path(hub.folder(str(made), tmp_path / "state")) / "model.safetensors")
    whole = load_file(base / "model.safetensors")
    expected = (whole[f"{name}.weight"].float() + b @ a * 2.0).bfloat16()
    assert weights.keys() == whole.keys()
    assert torch.equal(weights[f"{name}.weight"], expected)
    assert all(torch.equal(weights[each], whole[each]) for each in whole if each != f"{name}.weight")


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        ("model.layers.9.mlp.up_proj.lora_A.weight", (3, 32), "its base has no model.layers.9.mlp.up_proj.weight"),
        ("model.layers.0.mlp.up_proj.lora_A.weight", (3, 31), "the adapter changes one of"),
        (
            "model.embed_tokens.lora_embedding_A",
            (3, 32),
            "which is no LoRA matrix .* cannot be merged at load",
        ),
        (
            "model.layers.0.mlp.up_proj.lora_A.weight",
            (3, 32, 1),
            "no LoRA matrix .* cannot be merged at load",
        ),
    ],
)
def test_what_does_not_fit_its_base_is_refused(name: str, shape: tuple[int, ...], said: str, tmp_path: Path) -> None:
    base = build(tmp_path / "base", "qwen2")
    made = adapter(tmp_path / "adapter", base, [])
    held = {f"base_model.model.{name}": torch.zeros(shape)}
    held[f"base_model.model.{name}".replace("lora_A", "lora_B")] = torch.zeros(48, 3)
    save_file(held, made / adapters.WEIGHTS)
    with pytest.raises(SettingError, match=said) as caught:
        hub.folder(str(made), tmp_path / "state")
    assert str(caught.value).startswith(f"{made}: ")
    assert not list((tmp_path / "state" / "merged").iterdir())


@pytest.mark.parametrize(
    ("kept", "said"), [("lora_A", "lacks .*lora_B"), ("lora_B", "lacks .*lora_A"), ("", "is empty")]
)
def test_half_of_an_adapter_is_refused(kept: str, said: str, tmp_path: Path) -> None:
    made = adapter(tmp_path / "adapter", build(tmp_path / "base", "qwen2"), ["model.layers.0.mlp.up_proj"])
    held = load_file(made / adapters.WEIGHTS)
    save_file({name: each for name, each in held.items() if kept and kept in name}, made / adapters.WEIGHTS)
    with pytest.raises(SettingError, match=said):
        hub.folder(str(made), tmp_path / "state")


def test_a_base_s_folder_has_no_revision_and_its_small_files_are_followed(tmp_path: Path) -> None:
    base = build(tmp_path / "base", "qwen2")
    made = adapter(tmp_path / "adapter", base, ["model.layers.0.mlp.up_proj"], revision="main")
    (made / "tokenizer_of_before").mkdir()
    first = hub.folder(str(made), tmp_path / "state")
    (base / "generation_config.json").write_text('{"eos_token_id": 7}')
    second = Path(hub.folder(str(made), tmp_path / "state"))
    assert str(second) != first
    assert json.loads((second / "generation_config.json").read_text()) == {"eos_token_id": 7}
