"""What cannot be spread over devices is refused by name, before any process is started."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import build

from covey.contracts import profile
from covey.contracts.errors import SettingError, UnsupportedModel
from covey.contracts.profile import TargetSettings
from covey.models import loading
from covey.models.parallel.group import Group
from covey.models.parallel.model import check_devices
from covey.models.parallel.processes import Followers
from covey.models.parallel.sharding import load_shard
from covey.target.opening import load_target
from covey.target.runner import TargetRunner

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object) -> None:
        raise AssertionError("a process is started")

    monkeypatch.setattr(Followers, "_start", start)


def load(folder: Path, ranks: int, **settings: Any) -> None:
    chosen = TargetSettings(**({"device": "cpu", "dtype": "float32", "tensor_parallel": ranks} | settings))
    TargetRunner.load(folder, chosen, token_budget=64, name="target")


def shard(folder: Path, ranks: int = 2, rank: int = 0) -> torch.nn.Module:
    group = Group(rank, ranks, folder, CPU, lambda: None)
    return load_shard(folder, loading.read_config(folder), torch.float32, "eager", group)


@pytest.mark.parametrize("blocks", [0, 8])
def test_heads_that_do_not_divide(blocks: int, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"2 key heads cannot be spread over 4 devices: target\.tensor_parallel"):
        load(build(tmp_path, "llama"), 4, kv_blocks=blocks)
    with pytest.raises(UnsupportedModel, match="3 heads cannot be spread over 2 devices"):
        load(
            build(tmp_path, "llama", hidden_size=48, num_attention_heads=3, num_key_value_heads=4), 2, kv_blocks=blocks
        )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "gpt2"}, "gpt2: its class has no plan"),
        ({"model_type": "mixtral"}, "mixtral: its plan needs moe_tp_experts"),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_families_without_a_plan_that_is_known(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModel, match=message) as error:
        load(tmp_path, 2)
    assert str(error.value).endswith("set target.tensor_parallel to 1")


def test_matrices_that_do_not_divide(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"gate_proj: its 47 outputs cannot be spread over 2 devices"):
        shard(build(tmp_path, "llama", intermediate_size=47))


def test_weights_that_are_not_all_there(tmp_path: Path) -> None:
    path = build(tmp_path, "llama") / "model.safetensors"
    weights = load_file(path)
    name = "model.layers.0.mlp.up_proj.weight"
    whole = weights.pop(name)
    save_file(weights, path)
    with pytest.raises(SettingError, match=f"the weights lack {name} and 0 more"):
        shard(tmp_path)
    save_file(weights | {name: whole[:, :-2].contiguous()}, path)
    with pytest.raises(SettingError, match=f"{name} does not have the shape that config.json gives it"):
        shard(tmp_path)
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(SettingError, match="the weights cannot be read"):
        shard(tmp_path)


def test_a_rank_reads_its_part_alone(tmp_path: Path) -> None:
    """Nothing but embedding and norms is whole; the head's last rows are padding on the last rank."""
    folder = build(tmp_path, "llama")
    weights = load_file(folder / "model.safetensors")
    first, last = (shard(folder, rank=rank) for rank in (0, 1))
    for name, part in first.named_parameters():
        other = last.get_parameter(name)
        if name == "lm_head.weight":
            both = torch.cat((part, other))
            assert len(both) == 98
            assert both[:97].equal(weights["model.embed_tokens.weight"])
            assert not both[97:].any()
        elif "embed" in name or "norm" in name:
            assert part.equal(weights[name])
        else:
            assert part.numel() == weights[name].numel() / 2
            assert torch.cat((part, other), int("o_proj" in name or "down_proj" in name)).equal(weights[name])


def test_fewer_gpus_than_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    check_devices(torch.device("cuda"), 2)
    check_devices(CPU, 64)
    with pytest.raises(SettingError, match=r"target\.tensor_parallel: got 3, but torch sees 2 GPU"):
        check_devices(torch.device("cuda"), 3)


def test_an_emulated_device(tmp_path: Path) -> None:
    emulated = profile.load("emulated-7b")
    spread = replace(emulated, target=replace(emulated.target, tensor_parallel=2))
    with pytest.raises(SettingError, match=r"target\.tensor_parallel: got 2, allowed for an emulated device: 1"):
        load_target(tmp_path, spread, name="target")


def test_the_profile_s_range(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[target]\ntensor_parallel = 0\n")
    with pytest.raises(SettingError, match=r"target\.tensor_parallel: got 0, allowed: 1 to 64"):
        profile.load(str(path))
