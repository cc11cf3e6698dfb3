"""A head in either published form computes what its definition says, and a target's states leave its texts alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from covey.contracts.errors import CoveyError
from covey.models import heads
from covey.models.lanes import Pass, chain
from covey.models.model import PagedModel
from covey.models.native.head import HeadModel
from covey.models.native.model import NativeModel
from tests.models import tiny_heads, tiny_models
from tests.models.tiny_heads import TAPS, TARGET, WIDTH, Formula

TOKENS = np.random.default_rng(2).integers(2, 97, 45).astype(np.int32)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.build(tmp_path_factory.mktemp("models") / "target", "llama", **TARGET)


def opened(folder: Path, target: Path) -> HeadModel:
    head = heads.read(folder, target)
    return HeadModel(head, dtype="float32", blocks=20, threads=1, max_pass_tokens=64, most_blocks=0)


@pytest.mark.parametrize(
    ("form", "normed"),
    [({}, False), ({"nested": True}, False), ({"nested": True, "norm_before_residual": True}, True)],
    ids=["flat", "nested", "normed residual"],
)
def test_logits_and_outputs_are_those_of_the_formula(
    form: dict[str, Any], normed: bool, target: Path, tmp_path: Path
) -> None:
    folder = tiny_heads.build(tmp_path, **form)
    formula = Formula(folder, target, normed_residual=normed)
    states = formula.states(TOKENS.tolist())[:-1]
    logits, outputs = formula.step(states, TOKENS.tolist())
    model = opened(folder, target)
    work = chain(TOKENS[1:], 32)
    found = model.forward(Pass(work.tokens, work.positions, work.slots, work.lanes, work.out, states.numpy()))
    assert np.abs(found - logits.numpy()).max() < 1e-4
    assert np.abs(model.outputs(work.out) - outputs.numpy()).max() < 1e-4


INNER = {"eagle_aux_hidden_state_layer_ids": [tap - 1 for tap in TAPS], "norm_before_fc": True}


@pytest.mark.parametrize(
    ("form", "dtype"),
    [
        ({}, "float32"),
        ({}, "bfloat16"),
        ({}, "int8"),
        ({"nested": True, "norm_before_fc": True, "norm_output": True}, "float32"),
        ({"eagle_config": INNER}, "float32"),
        ({"fc_norm": True}, "float32"),
        ({"nested": True, "norm_before_fc": True, "fc_norm": True}, "bfloat16"),
    ],
    ids=["plain", "plain bfloat16", "plain int8", "norm of all", "NVIDIA's", "norm of each", "both"],
)
def test_states_are_those_of_the_formula_and_logits_keep_their_bits(
    form: dict[str, Any], dtype: str, target: Path, tmp_path: Path
) -> None:
    folder = tiny_heads.build(tmp_path, **form)
    plain = NativeModel(target, dtype=dtype, blocks=20, threads=2, numerics="fast", max_pass_tokens=64)
    taps = heads.taps_of(folder, target)
    assert taps.layers == TAPS
    tapped = NativeModel(target, dtype=dtype, blocks=20, threads=2, numerics="fast", max_pass_tokens=64, taps=taps)
    work = chain(TOKENS, 32)
    assert np.array_equal(plain.forward(work).copy(), tapped.forward(work))
    shipped = torch.from_numpy(tapped.states(work.slots)).view(torch.bfloat16).float()
    exact = Formula(folder, target).states(TOKENS.tolist())
    assert shipped.shape == (len(TOKENS), WIDTH)
    most = {"float32": 2**-8, "bfloat16": 2**-5, "int8": 2**-4}[dtype]
    assert (shipped - exact).abs().mean() < exact.abs().mean() * most


@pytest.mark.parametrize("native", [True, False], ids=["native", "PyTorch"])
def test_states_follow_copied_slots_and_moved_blocks(native: bool, target: Path, tmp_path: Path) -> None:
    taps = heads.taps_of(tiny_heads.build(tmp_path), target)
    settings: dict[str, Any] = {"dtype": "bfloat16", "blocks": 20, "max_pass_tokens": 64, "taps": taps}
    settings["numerics"] = "fast"
    model: Any = (
        NativeModel(target, threads=1, **settings)
        if native
        else PagedModel(target, block_size=32, device="cpu", **settings)
    )
    work = chain(TOKENS, 32)
    model.forward(work)
    states = model.states(work.slots)
    assert len(np.unique(states[:, 0])) > 20
    model.copy_slots(work.slots[3:5], work.slots[10:12])
    assert np.array_equal(model.states(work.slots[10:12]), states[3:5])
    model.move_blocks(np.asarray([0, 1], np.int32), np.asarray([7, 9], np.int32))
    moved = np.concatenate([np.arange(7 * 32, 8 * 32), np.arange(9 * 32, 10 * 32)]).astype(np.int32)
    assert np.array_equal(model.states(moved), model.states(np.arange(64, dtype=np.int32)))
    every = np.arange(20 * 32, dtype=np.int32)
    assert np.array_equal(model.states(every), np.concatenate([model.states(each) for each in every.reshape(-1, 32)]))
    assert model.states(every[:0]).shape == (0, model.state_width)
    model.clear_slots(work.slots[:2])
    assert not model.states(work.slots[:2]).any()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no sizes": ({"hidden_size": "32"}, "hidden_size of config.json is '32'"),
    "layers in words": ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": "123"}}, "the target has 6 layers"),
    "no table": ({"eagle_config": [1, 2, 3]}, "the target has 6 layers"),
    "ids that are true": ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [True] * 3}}, "has 6 layers"),
    "no heads": ({"num_attention_heads": None}, "num_attention_heads of config.json is None"),
    "no rotation": ({"rope_scaling": "x"}, "config.json cannot be read"),
    "no number": ({"rms_norm_eps": "x"}, "rms_norm_eps of config.json is 'x', allowed: a number"),
    "no flag": ({"norm_before_residual": "false"}, "norm_before_residual of config.json is 'false'"),
    "another kind": ({"architectures": ["LlamaForCausalLM"], "draft_vocab_size": None}, "is not of an EAGLE-3 head"),
    "layers": ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 6]}}, "the target has 6 layers"),
    "fewer taps": (
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2]}},
        "fc.weight is .*is it another one's head",
    ),
    "no flag of a norm": ({"fc_norm": 3}, "fc_norm of config.json is 3"),
    "an older name": ({"use_aux_norm": True}, "use_aux_norm of config.json is not supported"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_cannot_serve_is_refused_by_name(name: str, target: Path, tmp_path: Path) -> None:
    changes, reason = REFUSED[name]
    with pytest.raises(CoveyError, match=reason):
        heads.read(tiny_heads.build(tmp_path, **changes), target)


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("d2t", lambda tensor: tensor + 20),  # beyond the target's tokens
        ("d2t", lambda tensor: tensor.index_fill(0, torch.tensor([4]), int(tensor[5]) + 1)),  # one of them twice
        ("d2t", lambda tensor: tensor.int()),
        ("midlayer.self_attn.q_proj.weight", lambda tensor: tensor[:, :WIDTH].contiguous()),  # reads no state
        ("midlayer.self_attn.o_proj.weight", lambda tensor: tensor[:, 1:].contiguous()),
        ("midlayer.hidden_norm.weight", lambda _: None),
        ("lm_head.weight", lambda _: None),
        ("norm.weight", lambda tensor: tensor.to(torch.int8)),
        ("midlayer.input_layernorm.weight", lambda tensor: tensor[:1].contiguous()),
        ("fc.weight", lambda tensor: tensor.double()),
        ("lm_head.weight", lambda tensor: tensor[:0].contiguous()),
    ],
)
def test_tensors_that_cannot_be_a_heads_are_refused_by_name(
    name: str, made: Callable[[torch.Tensor], torch.Tensor | None], target: Path, tmp_path: Path
) -> None:
    folder = tiny_heads.build(tmp_path, known=range(40, 90))
    heads.read(folder, target)
    weights = load_file(folder / "model.safetensors")
    changed = made(weights.pop(name))
    save_file(weights if changed is None else weights | {name: changed}, folder / "model.safetensors")
    with pytest.raises(CoveyError, match=name.rpartition("midlayer.")[2]):
        heads.read(folder, target)


def test_what_it_would_not_read_is_refused_by_name(target: Path, tmp_path: Path) -> None:
    folder = tiny_heads.build(tmp_path)
    weights = load_file(folder / "model.safetensors")
    for name in ("fc.bias", "lm_head.bias", "layers.1.mlp.up_proj.weight", "midlayer.self_attn.q_norm.weight"):
        save_file(weights | {name: torch.zeros(WIDTH)}, folder / "model.safetensors")
        with pytest.raises(CoveyError, match="a head of one layer without biases"):
            heads.read(folder, target)


@pytest.mark.parametrize(
    ("form", "tensor"), [({"fc_norm": True}, "fc_norm.2.weight"), ({"norm_before_fc": True}, "input_norm.weight")]
)
def test_norms_are_in_the_settings_and_in_the_weights_or_refused(
    form: dict[str, Any], tensor: str, target: Path, tmp_path: Path
) -> None:
    folder = tiny_heads.build(tmp_path, **form)
    weights = load_file(folder / "model.safetensors")
    save_file({f"model.{name}": each for name, each in weights.items()}, folder / "model.safetensors")
    assert len(heads.read(folder, target).norms[0]) == (3 if "fc_norm" in form else 1), "with or without model."
    for changed in ({}, {tensor: weights[tensor][1:].contiguous()}):
        rest = {name: each for name, each in weights.items() if name != tensor}
        save_file(rest | changed, folder / "model.safetensors")
        with pytest.raises(CoveyError, match=tensor):
            heads.read(folder, target)
    save_file(weights, tiny_heads.build(tmp_path) / "model.safetensors")
    with pytest.raises(CoveyError, match=f"but {next(iter(form))} of config.json is not true"):
        heads.read(folder, target)


def test_a_head_is_no_model_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(CoveyError, match="is an EAGLE-3 head"):
        NativeModel(tiny_heads.build(tmp_path), dtype="float32", blocks=1, threads=1)
