"""Every format of quantised weights, packed here as its writers pack it, stands for what was packed."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from covey.contracts.errors import UnsupportedModel
from covey.models import quantised

ROWS, COLUMNS, GROUP = 48, 64, 16
SEED = torch.Generator().manual_seed(0)
AWQ = (0, 2, 4, 6, 1, 3, 5, 7)


def integers(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=SEED)


def scales(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=SEED) + 0.5


def packed(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Along columns, the first in the lowest bits, into the 32 bits of an integer with a sign."""
    each = 32 // bits
    words = sum(values[:, at::each].long() << bits * at for at in range(each))
    assert isinstance(words, torch.Tensor)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).int()


def meant(parts: dict[str, torch.Tensor], **settings: Any) -> torch.Tensor:
    assert quantised.refused(settings) == ""
    found = quantised.plain("layer", parts, settings)
    assert found is not None
    return found[1]


def test_a_scale_for_each_block_the_last_ones_cut() -> None:
    weight = torch.randn(50, 70, generator=SEED).to(torch.float8_e4m3fn)
    each = scales(2, 3)
    found = meant({"weight": weight, "weight_scale_inv": each}, quant_method="fp8", weight_block_size=[32, 32])
    expected = [[weight[i, j].float() * each[i // 32, j // 32] for j in range(70)] for i in range(50)]
    assert torch.equal(found, torch.tensor(expected))


@pytest.mark.parametrize("shape", [(), (1,), (ROWS,), (ROWS, 1), (ROWS, COLUMNS // GROUP)], ids=str)
def test_a_scale_for_all_for_each_row_or_for_groups_of_columns(shape: tuple[int, ...]) -> None:
    weight, each = integers(255, ROWS, COLUMNS).sub(127).to(torch.int8), scales(*shape)
    found = meant({"weight": weight, "weight_scale": each}, quant_method="compressed-tensors")
    rows = each.reshape(-1, 1) if each.dim() < 2 else each.repeat_interleave(COLUMNS // each.shape[1], 1)
    assert torch.equal(found, weight.float() * rows)


def test_a_zero_point_is_taken_off_before() -> None:
    weight, zero, each = torch.tensor([[3, 5]], dtype=torch.int8), torch.tensor([[1]]), torch.tensor([[0.5]])
    parts = {"weight": weight, "weight_scale": each, "weight_zero_point": zero}
    assert meant(parts, quant_method="compressed-tensors").tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize("bits", [4, 8])
def test_packed_rows_of_compressed_tensors(bits: int) -> None:
    values, each = integers(2**bits, ROWS, COLUMNS), scales(ROWS, COLUMNS // GROUP)
    parts = {"weight_packed": packed(values, bits), "weight_scale": each, "weight_shape": torch.tensor([ROWS, COLUMNS])}
    found = meant(parts, quant_method="compressed-tensors")
    expected = (values - 2 ** (bits - 1)).float() * each.repeat_interleave(GROUP, 1)
    assert torch.equal(found, expected)
    order = torch.randperm(COLUMNS, generator=SEED) // GROUP
    again = meant(parts | {"weight_g_idx": order}, quant_method="compressed-tensors")
    assert torch.equal(again, (values - 2 ** (bits - 1)).float() * each[:, order])


@pytest.mark.parametrize(("bits", "version"), [(4, "gptq"), (8, "gptq"), (2, "gptq"), (4, "gptq_v2")])
def test_gptq_with_groups_of_any_columns(bits: int, version: str) -> None:
    groups = COLUMNS // GROUP
    values, zeros, each = integers(2**bits, COLUMNS, ROWS), integers(2**bits, groups, ROWS), scales(groups, ROWS)
    order = torch.randperm(COLUMNS, generator=SEED) // GROUP
    kept = zeros if version == "gptq_v2" else (zeros - 1) % 2**bits
    parts = {"qweight": packed(values.T, bits).T.contiguous(), "qzeros": packed(kept, bits), "scales": each}
    found = meant(parts | {"g_idx": order}, quant_method="gptq", bits=bits, checkpoint_format=version)
    assert torch.equal(found, ((values - zeros[order]).float() * each[order]).T)
    found = meant(parts, quant_method="gptq", bits=bits, checkpoint_format=version)
    order = torch.arange(COLUMNS) // GROUP
    assert torch.equal(found, ((values - zeros[order]).float() * each[order]).T)


def test_awq_packs_columns_in_an_order_of_its_own() -> None:
    groups = COLUMNS // GROUP
    values, zeros, each = integers(16, COLUMNS, ROWS), integers(16, groups, ROWS), scales(groups, ROWS)

    def ordered(columns: torch.Tensor) -> torch.Tensor:
        return packed(columns.view(len(columns), -1, 8)[:, :, list(AWQ)].flatten(1), 4)

    found = meant({"qweight": ordered(values), "qzeros": ordered(zeros), "scales": each}, quant_method="awq", bits=4)
    order = torch.arange(COLUMNS) // GROUP
    assert torch.equal(found, ((values - zeros[order]).float() * each[order]).T)


@pytest.mark.parametrize("nested", [False, True])
def test_bitsandbytes_four_bits(nested: bool) -> None:
    values, table = integers(16, ROWS, COLUMNS), torch.randn(16, generator=SEED)
    flat = values.flatten()
    state = {"blocksize": 64, "shape": [ROWS, COLUMNS], "nested_blocksize": 32, "nested_offset": 0.25}
    parts = {
        "weight": (flat[::2] << 4 | flat[1::2]).to(torch.uint8)[:, None],
        "weight.quant_map": table,
        "weight.quant_state.bitsandbytes__nf4": torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8),
    }
    each = scales(ROWS * COLUMNS // 64)
    if nested:
        small, blocks = torch.randn(256, generator=SEED), scales(2)
        index = integers(256, len(each))
        parts |= {
            "weight.absmax": index.to(torch.uint8), "weight.nested_absmax": blocks, "weight.nested_quant_map": small
        }  # fmt: skip
        each = small[index] * blocks.repeat_interleave(32)[: len(each)] + 0.25
    else:
        parts["weight.absmax"] = each
    expected = (table[flat] * each.repeat_interleave(64)).view(ROWS, COLUMNS)
    assert torch.equal(meant(parts, quant_method="bitsandbytes"), expected)


def test_bitsandbytes_eight_bits() -> None:
    weight = torch.tensor([[127, -127], [1, 0]], dtype=torch.int8)
    found = meant({"weight": weight, "SCB": torch.tensor([0.5, 127.0])}, quant_method="bitsandbytes")
    assert found.tolist() == [[0.5, -0.5], [1.0, 0.0]]


def test_experts_of_four_bit_floats() -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    blocks, each = integers(256, 3, 10, 2, 16).to(torch.uint8), integers(20, 3, 10, 2).add(117).to(torch.uint8)
    expected = convert_moe_packed_tensors(blocks, each, dtype=torch.float32)
    assert torch.equal(meant({"_blocks": blocks, "_scales": each}, quant_method="mxfp4"), expected)


def test_names_come_apart_and_together() -> None:
    for module, part in (
        ("model.layers.0.mlp.up_proj", "weight_scale_inv"),
        ("model.layers.0.mlp.up_proj", "weight.quant_state.bitsandbytes__nf4"),
        ("model.layers.0.mlp.experts.gate_up_proj", "_blocks"),
        ("model.layers.0.self_attn.q_proj", "qzeros"),
        ("model.layers.0.self_attn.q_proj.bias", ""),
    ):
        assert quantised.split(quantised.joined(module, part)) == (module, part)


def test_what_is_plain_stays_and_what_is_of_another_kind_is_named() -> None:
    settings = {"quant_method": "compressed-tensors"}
    assert quantised.plain("norm", {"weight": torch.ones(3)}, settings) is None
    assert quantised.plain("bias", {"": torch.ones(3)}, settings) is None
    wrong = {"weight_packed": torch.zeros(2, 2, dtype=torch.uint8), "weight_scale": torch.ones(2, 1)}
    with pytest.raises(UnsupportedModel, match=r"^layer: .* cannot be made plain: packed weights of four-bit floats"):
        quantised.plain("layer", wrong, settings)
    with pytest.raises(UnsupportedModel, match=r"^layer: .*weight_scale"):
        quantised.plain("layer", {"weight_packed": torch.zeros(2, 2, dtype=torch.int32)}, settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"quant_method": "hqq"}, "quant_method hqq"),
        ({"quant_method": "gptq", "bits": 3}, "GPTQ of 3 bits"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "AWQ of 4 bits, version gemv"),
        ({"quant_method": "compressed-tensors", "transform_config": {"a": 1}}, "transforms"),
        ({"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24"}}, "sparse"),
    ],
)
def test_refused_by_name(settings: dict[str, Any], said: str) -> None:
    assert said in quantised.refused(settings)
