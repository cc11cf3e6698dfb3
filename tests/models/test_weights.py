from __future__ import annotations

import json
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from covey.contracts.errors import SettingError
from covey.models import weights
from covey.models.loading import load_module, quiet, read_config
from tests.models.tiny_models import FAMILIES, build

CPU = torch.device("cpu")
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def loaded(folder: Path, dtype: torch.dtype, streamed: bool, device: torch.device = CPU) -> Any:
    return load_module(folder, read_config(folder), dtype, device, "eager", streamed=streamed)


def tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers, tied ones by each of their names."""
    return {
        name: tensor
        for found in (module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False))
        for name, tensor in found
    }


def alike(folder: Path, dtype: torch.dtype, device: torch.device = CPU) -> torch.nn.Module:
    """The streamed module, after it was seen to be the one that transformers reads."""
    found, expected = loaded(folder, dtype, True, device), loaded(folder, dtype, False)
    old, new = tensors(expected), tensors(found)
    assert old.keys() == new.keys()
    for name, tensor in old.items():
        assert new[name].dtype == tensor.dtype, name
        assert new[name].device.type == device.type, name
        assert torch.equal(new[name].cpu(), tensor), name
        assert not new[name].requires_grad
        assert [n for n in new if new[n] is new[name]] == [n for n in old if old[n] is tensor], name
    assert not found.training
    return found


@pytest.fixture(autouse=True)
def no_way_around(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Buffers into which the models' larger weights do not fit whole, and no way around them that a test has not
    cleared."""
    monkeypatch.setattr(weights, "STAGING_BYTES", 1000)
    yield
    assert not [record for record in caplog.records if "read by transformers" in record.message]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_as_transformers_reads_it(family: str, tmp_path: Path) -> None:
    build(tmp_path, family)
    alike(tmp_path, torch.float32)
    alike(tmp_path, torch.bfloat16)


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_types_are_converted(stored: torch.dtype, tmp_path: Path) -> None:
    build(tmp_path, "llama", stored)
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        alike(tmp_path, dtype)


@pytest.mark.parametrize("tied", [True, False])
def test_sharded_files(tied: bool, tmp_path: Path) -> None:
    with quiet():
        module = transformers.AutoModelForCausalLM.from_pretrained(
            build(tmp_path / "whole", "qwen2", tie_word_embeddings=tied)
        )
        module.save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 2
    alike(tmp_path / "sharded", torch.float32)


@pytest.mark.parametrize("equal", [True, False])
def test_two_stored_weights_are_tied_only_if_equal(equal: bool, tmp_path: Path) -> None:
    def change(stored: dict[str, torch.Tensor]) -> None:
        stored["lm_head.weight"] = stored["model.embed_tokens.weight"].clone()
        if not equal:
            stored["lm_head.weight"][-1, -1] += 1

    build(tmp_path, "llama")
    edit(tmp_path, change)
    module: Any = alike(tmp_path, torch.float32)
    assert (module.lm_head.weight is module.model.embed_tokens.weight) == equal


def test_a_tie_holds_whichever_of_its_weights_is_stored(tmp_path: Path) -> None:
    build(tmp_path, "llama")
    edit(tmp_path, lambda stored: stored.update({"lm_head.weight": stored.pop("model.embed_tokens.weight")}))
    alike(tmp_path, torch.float32)


def test_names_without_prefix_and_weights_that_nobody_needs(tmp_path: Path) -> None:
    def change(stored: dict[str, torch.Tensor]) -> None:
        for key in list(stored):
            stored[key.removeprefix("model.")] = stored.pop(key)
        stored["layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)

    build(tmp_path, "llama")
    edit(tmp_path, change)
    alike(tmp_path, torch.float32)


def test_what_is_missing_misshapen_or_cut_off_is_said(tmp_path: Path) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    path = build(tmp_path, "llama") / "model.safetensors"
    whole = path.read_bytes()
    edit(tmp_path, lambda stored: stored.update({name: torch.zeros(2, 2)}))
    assert refusal(tmp_path, True) == refusal(tmp_path, False)
    edit(tmp_path, lambda stored: stored.pop(name))
    assert f"the weights lack {name} and 0 more" in refusal(tmp_path, True)
    for cut in (4, 500, len(whole) - 1):
        path.write_bytes(whole[:cut])
        assert "the weights cannot be read" in refusal(tmp_path, True)


def test_a_shard_that_is_not_there_is_said(tmp_path: Path) -> None:
    path = build(tmp_path, "llama") / "model.safetensors"
    path.rename(tmp_path / "model-00001-of-00002.safetensors")
    places = dict.fromkeys(load_file(tmp_path / "model-00001-of-00002.safetensors"), "model-00001-of-00002.safetensors")
    places["model.norm.weight"] = "model-00002-of-00002.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    assert "model-00002-of-00002.safetensors is not there" in refusal(tmp_path, True)


def test_weights_that_are_computed_of_stored_ones_are_left_to_transformers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = transformers.MixtralConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=2,
    )
    with quiet():
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    alike(tmp_path, torch.float32)
    assert [record.message for record in caplog.records] == [
        f"{tmp_path}: weights are read by transformers, which is slower: they are not stored as computed"
    ]
    caplog.clear()


@pytest.mark.parametrize("turn", [lambda weight: weight.T, lambda weight: weight + 0, lambda weight: weight.double()])
def test_a_weight_that_is_not_the_stored_one_is_seen(turn: Callable[[Any], Any], tmp_path: Path) -> None:
    save_file({"weight": torch.randn(8, 8)}, tmp_path / "model.safetensors")

    def made(stored: dict[str, torch.Tensor]) -> tuple[torch.nn.Module, dict[str, Any]]:
        module = torch.nn.Linear(8, 8, bias=False)
        module.weight = torch.nn.Parameter(turn(stored["weight"]))
        return module, {}

    assert weights.load([tmp_path / "model.safetensors"], torch.float32, CPU, made) is None


def test_what_has_no_values_yet_takes_no_memory() -> None:
    before = resident()
    huge = [weights._empty((1 << 16, 1 << 13), torch.bfloat16, index) for index in range(4)]  # of 1 GiB
    assert resident() - before < 64 << 20
    assert huge[3][0, :3].tolist() == [1, 1, 0]
    assert not huge[3][-1].any()


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@on_gpu
@pytest.mark.parametrize("family", FAMILIES)
def test_on_a_gpu_too(family: str, tmp_path: Path) -> None:
    build(tmp_path, family)
    alike(tmp_path, torch.float32, torch.device("cuda"))
    alike(tmp_path, torch.bfloat16, torch.device("cuda"))


def edit(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    stored = load_file(folder / "model.safetensors")
    change(stored)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})


def refusal(folder: Path, streamed: bool) -> str:
    with pytest.raises(SettingError) as error:
        loaded(folder, torch.float32, streamed)
    return str(error.value)
