"""The values of quantised weights by the formats' own arithmetic: tensors of a checkpoint to a plain one's.

Every format stores integers or narrow floats q and says what a step of them is worth: w = scale * (q - zero), a scale
for a tensor, a row, a group of columns or a block. Sums are float32; nothing here rounds. That a model was to round its
activations, too, is not done. transformers' own readers hold the whole model in memory and need packages of the formats
(gptqmodel and optimum, bitsandbytes, compressed-tensors).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import torch

from covey.contracts.errors import UnsupportedModel

Tensors = Mapping[str, torch.Tensor]
METHODS = ("fp8", "fbgemm_fp8", "compressed-tensors", "gptq", "awq", "bitsandbytes", "mxfp4")
# The last part of a tensor's name, by which the tensors of one weight are found.
_PART = re.compile(
    r"\.(weight(?:_scale_inv|_scale|_packed|_shape|_zero_point|_g_idx|_format|\..+)?|input_scale|[qkv]_scale|"
    r"input_zero_point|qweight|qzeros|scales|g_idx|SCB)$|(_blocks|_scales)$"
)
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the column that each four bits of an integer belong to
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def split(name: str) -> tuple[str, str]:
    """Return the module (of experts: the parameter) that a tensor belongs to, and which part of it this is."""
    match = _PART.search(name)
    return (name, "") if match is None else (name[: match.start()], match[1] or match[2])


def joined(module: str, part: str) -> str:
    """Return the name of the tensor that `split` took apart."""
    return module + part if part[:1] in ("", "_") else f"{module}.{part}"


def refused(settings: Mapping[str, Any]) -> str:
    """Return why weights of this quantization_config cannot be made plain; "" where they can."""
    method = settings.get("quant_method")
    if method not in METHODS:
        return f"weights of quant_method {method}"
    if method == "gptq" and settings.get("bits") not in (2, 4, 8):
        return f"GPTQ of {settings.get('bits')} bits"
    if method == "awq" and (settings.get("bits") != 4 or settings.get("version", "gemm").lower() != "gemm"):
        return f"AWQ of {settings.get('bits')} bits, version {settings.get('version')}"
    if settings.get("transform_config"):
        return "compressed-tensors with transforms"
    if (settings.get("sparsity_config") or {}).get("format", "dense") != "dense":
        return "compressed-tensors with sparse weights"
    return ""


def plain(name: str, parts: Tensors, settings: Mapping[str, Any]) -> tuple[str, torch.Tensor] | None:
    """Return the suffix of a plain weight's name, and the weight in float32, of one module's `parts`; None where it is
    stored plainly. Refuses by its `name` what is stored otherwise than `settings` say."""
    try:
        return _plain(parts, settings)
    except (KeyError, ValueError, IndexError, RuntimeError) as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UnsupportedModel(
            f"{name}: weights that are quantised in this way cannot be made plain: {said}"
        ) from error


def _plain(parts: Tensors, settings: Mapping[str, Any]) -> tuple[str, torch.Tensor] | None:
    method = settings.get("quant_method")
    if "_blocks" in parts:
        return "", _mxfp4(parts["_blocks"], parts["_scales"])
    if "qweight" in parts:
        return ".weight", _gptq(parts, settings) if method == "gptq" else _awq(parts)
    if "weight_packed" in parts:
        return ".weight", _packed(parts)
    weight = parts.get("weight")
    if weight is None:
        return None
    if "SCB" in parts:
        return ".weight", weight.float() * parts["SCB"].float()[:, None] / 127
    if any(part.startswith("weight.quant_state.") for part in parts):
        return ".weight", _four_bits(parts)
    scale = parts.get("weight_scale_inv", parts.get("weight_scale"))
    return None if scale is None else (".weight", _stepped(weight, scale, parts.get("weight_zero_point"), settings))


def _stepped(
    weight: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor | None, settings: Mapping[str, Any]
) -> torch.Tensor:
    """Return a weight made plain that has a scale for all, for each row, or for each block of rows and columns."""
    if scale.dtype == torch.uint8:
        raise ValueError("scales are bare bytes")
    block = _block(settings)

    def spread(each: torch.Tensor) -> torch.Tensor:
        each = each.float()
        if each.numel() == 1:
            return each.reshape(1, 1)
        if each.dim() == 1:
            each = each[:, None]
        for side in (0, 1):
            if 1 < each.shape[side] < weight.shape[side]:
                size = block[side] if block else weight.shape[side] // each.shape[side]
                each = each.repeat_interleave(size, side).narrow(side, 0, weight.shape[side])
        return each

    values = weight.float()
    return (values if zero is None else values - spread(zero)) * spread(scale)


def _block(settings: Mapping[str, Any]) -> list[int] | None:
    groups = (settings.get("config_groups") or {}).values()
    named = [(group.get("weights") or {}).get("block_structure") for group in groups]
    found: list[int] | None = settings.get("weight_block_size") or next(filter(None, named), None)
    return found


def _bits(packed: torch.Tensor, bits: int, side: int) -> torch.Tensor:
    """Return the integers packed into int32, the lowest bits first, along rows (0) or columns (1)."""
    at = torch.arange(0, 32, bits, dtype=torch.int32)
    apart: torch.Tensor = (packed.unsqueeze(side + 1) >> at.view(-1, *[1] * (1 - side))) & (2**bits - 1)
    return apart.flatten(side, side + 1)


def _packed(parts: Tensors) -> torch.Tensor:
    """Make compressed-tensors' pack-quantized weights plain: integers with an offset, column groups with a scale."""
    packed, scale = parts["weight_packed"], parts["weight_scale"].float()
    if packed.dtype != torch.int32 or "weight_zero_point" in parts:
        raise ValueError("packed weights of four-bit floats, or with zero points")
    rows, columns = parts["weight_shape"].tolist()
    bits = 8 if -(-columns // 4) == packed.shape[1] else 4
    values = _bits(packed, bits, 1)[:rows, :columns].float() - float(2 ** (bits - 1))
    group = parts.get("weight_g_idx", torch.arange(columns) // -(-columns // scale.shape[1])).long()
    return values * scale[:, group]


def _gptq(parts: Tensors, settings: Mapping[str, Any]) -> torch.Tensor:
    bits = int(settings["bits"])
    values, zeros = _bits(parts["qweight"], bits, 0), _bits(parts["qzeros"], bits, 1)
    if settings.get("checkpoint_format") != "gptq_v2":  # the first version keeps each zero less one
        zeros = (zeros + 1) & (2**bits - 1)
    each = len(values) // len(zeros)
    group = parts.get("g_idx", torch.arange(len(values)) // each).long()
    return _by_columns(values, zeros[group], parts["scales"][group])


def _awq(parts: Tensors) -> torch.Tensor:
    def columns(packed: torch.Tensor) -> torch.Tensor:
        inside = torch.tensor(_AWQ_ORDER).argsort()
        apart = _bits(packed, 4, 1)
        return apart.view(len(apart), -1, 8)[:, :, inside].flatten(1)

    values, zeros = columns(parts["qweight"]), columns(parts["qzeros"])
    group = torch.arange(len(values)) // (len(values) // len(zeros))
    return _by_columns(values, zeros[group], parts["scales"][group])


def _by_columns(values: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return ((values - zeros).float() * scales.float()).T


def _four_bits(parts: Tensors) -> torch.Tensor:
    """Return bitsandbytes' blocks of a table's values made plain; the blocks' scales may be quantised themselves."""
    kept = next(tensor for part, tensor in parts.items() if part.startswith("weight.quant_state."))
    state = json.loads(bytes(kept.tolist()))
    scale = parts["weight.absmax"]
    if "weight.nested_absmax" in parts:
        nested = parts["weight.nested_absmax"].float().repeat_interleave(int(state["nested_blocksize"]))[: len(scale)]
        scale = parts["weight.nested_quant_map"].float()[scale.long()] * nested + float(state["nested_offset"])
    packed = parts["weight"].flatten().view(torch.uint8).long()
    values = parts["weight.quant_map"].float()[torch.stack((packed >> 4, packed & 15), 1).flatten()]
    spread = scale.float().repeat_interleave(int(state["blocksize"]))[: len(values)]
    shape = [int(size) for size in state["shape"]]
    return (values[: len(spread)] * spread)[: shape[0] * shape[1]].view(shape)


def _mxfp4(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Make experts of GPT-OSS plain: 32 numbers of four bits share a power of two; stored [experts, columns, rows]."""
    table = torch.tensor([*_E2M1, *(-each for each in _E2M1)])
    values = table[torch.stack((blocks & 15, blocks >> 4), -1).long()].flatten(-2)
    return torch.ldexp(values, (scales.int() - 127)[..., None]).flatten(-2).transpose(1, 2)
