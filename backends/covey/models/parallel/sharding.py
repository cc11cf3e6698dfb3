"""The share of a Hugging Face model that one rank holds, cut by the plan of its class.

transformers applies the plan too, but needs one more package for that, takes whatever accelerator the machine has,
reads ranks from the environment and leaves tensors behind that only its own modules multiply. Here the linear maps that
the plan cuts are plain ones over plain tensors, so that the short pass of `fuse.py` and the probes take them as they
are, and of each weight only this rank's part is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open

from covey.contracts.errors import SettingError, UnsupportedModel
from covey.models.loading import quiet
from covey.models.parallel.group import Group
from covey.models.parallel.plan import CUT_COLUMNS, GATHERED, SPLIT_INPUT, WHOLE, base_plan
from covey.models.refusals import weight_files


class ShardedLinear(torch.nn.Linear):
    """This rank's part of a linear map. `after` brings the ranks' results together, None where they stay apart."""

    after: Callable[[torch.Tensor], torch.Tensor] | None

    def __init__(self, whole: torch.nn.Linear, style: str, group: Group, name: str) -> None:
        self._sums = style == CUT_COLUMNS or style in SPLIT_INPUT
        width, height, size = whole.in_features, whole.out_features, group.size
        cut = width if self._sums else height
        if cut % size and style not in GATHERED:
            raise UnsupportedModel(
                f"{name}: its {cut} {'inputs' if self._sums else 'outputs'} cannot be spread over {size} devices: "
                "target.tensor_parallel must divide them"
            )
        part = -(-cut // size)
        bias = whole.bias is not None and not (self._sums and group.rank)  # once in the sum
        shape = (part, height) if self._sums else (width, part)
        super().__init__(*shape, bias=bias, device="meta", dtype=whole.weight.dtype)
        self._start, self._stop = min(cut, group.rank * part), min(cut, (group.rank + 1) * part)
        self._splits = style in SPLIT_INPUT
        self.after = None
        if self._sums:
            self.after = group.sum
        elif style in GATHERED:
            self.after = lambda part: group.gather(part, height)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self._splits:
            x = x[..., self._start : self._stop]
        result = self.alone(x)
        return result if self.after is None else self.after(result)

    def alone(self, x: torch.Tensor) -> torch.Tensor:
        """Return this rank's product, without the others'."""
        return F.linear(x, self.weight, self.bias)

    def read(self, leaf: str, stored: Any) -> torch.Tensor:
        """Return this rank's part of a stored tensor; rows that fill up the last rank's are zeros."""
        if self._sums:
            shard = stored[:] if leaf == "bias" else stored[:, self._start : self._stop]
        else:
            shard = stored[self._start : self._stop]
        missing = 0 if self._sums else self.out_features - shard.shape[0]
        return shard if not missing else torch.cat((shard, shard.new_zeros(missing, *shard.shape[1:])))


def load_shard(folder: Path, config: Any, dtype: torch.dtype, attention: str, group: Group) -> torch.nn.Module:
    """Return what this rank holds of the causal language model in `folder`, in evaluation mode, on its device."""
    from transformers import AutoModelForCausalLM

    files = weight_files(folder)
    with quiet(), torch.device("meta"):
        try:
            module: Any = AutoModelForCausalLM.from_config(
                config, dtype=dtype, attn_implementation=attention, trust_remote_code=False
            )
        except ValueError as error:
            raise UnsupportedModel(f"{folder}: {type(config).__name__} is not supported: {error}") from error
    tied = module.get_output_embeddings().weight is module.get_input_embeddings().weight
    _cut(folder, module, config, group)
    with ExitStack() as open_files:
        try:
            stored = [open_files.enter_context(safe_open(str(path), "pt")) for path in files]
            where = {key: file for file in stored for key in file.keys()}  # noqa: SIM118  (not a mapping)
            _fill(folder, module, where, tied, dtype, group.device)
        except (SafetensorError, OSError) as error:
            raise SettingError(f"{folder}: the weights cannot be read: {error}") from error
    _compute_buffers(folder, module, group.device)
    shard: torch.nn.Module = module.eval().requires_grad_(False)
    return shard


def _cut(folder: Path, module: Any, config: Any, group: Group) -> None:
    plan = {f"{module.base_model_prefix}.{path}": style for path, style in base_plan(folder, config).items()}
    plan.update(getattr(type(module), "_tp_plan", None) or {})  # the head's
    for name, part in list(module.named_modules()):
        style = plan.get(re.sub(r"\d+", "*", name))
        if style is None or style in WHOLE:
            continue
        if type(part) is not torch.nn.Linear:
            raise UnsupportedModel(
                f"{folder}: tensor parallelism is not supported for {type(part).__name__} ({name}): only linear maps "
                "are spread; set target.tensor_parallel to 1"
            )
        module.set_submodule(name, ShardedLinear(part, style, group, f"{folder}: {name}"))


def _fill(
    folder: Path, module: Any, where: dict[str, Any], tied: bool, dtype: torch.dtype, device: torch.device
) -> None:
    """Read every parameter's part of the files."""
    embedding, head = module.get_input_embeddings(), module.get_output_embeddings()
    names = {part: name for name, part in module.named_modules()}
    missing = []
    for name, empty in list(module.named_parameters()):
        path, _, leaf = name.rpartition(".")
        owner = module.get_submodule(path)
        source = f"{names[embedding]}.weight" if tied and owner is head and leaf == "weight" else name
        if source not in where:
            missing.append(source)
            continue
        file = where[source]
        cut = isinstance(owner, ShardedLinear)
        tensor = owner.read(leaf, file.get_slice(source)) if cut else file.get_tensor(source)
        if tensor.shape != empty.shape:
            raise SettingError(
                f"{folder}: {source} does not have the shape that config.json gives it: {tuple(tensor.shape)}"
            )
        setattr(owner, leaf, torch.nn.Parameter(tensor.to(device, dtype), requires_grad=False))
    if missing:
        raise SettingError(
            f"{folder}: the weights lack {missing[0]} and {len(missing) - 1} more; copy them whole, and save them anew "
            "where their names are of an older form, or set target.tensor_parallel to 1"
        )
    if tied and not isinstance(head, ShardedLinear):
        head.weight = embedding.weight


def _compute_buffers(folder: Path, module: Any, device: torch.device) -> None:
    """Compute the buffers that no file has, such as rotary frequencies, from the configuration."""
    for weight in module.parameters():
        weight._is_hf_initialized = True  # transformers' mark of a parameter that is not to be drawn
    for name, owner in list(module.named_modules()):
        own = dict(owner.named_buffers(recurse=False))
        if not own:
            continue
        for leaf, buffer in own.items():
            if not buffer.is_floating_point():
                raise UnsupportedModel(f"{folder}: tensor parallelism is not supported: {name}.{leaf} is not computed")
            setattr(owner, leaf, torch.full_like(buffer, torch.nan, device=device))
        with torch.no_grad():
            module._init_weights(owner)
        for leaf in own:
            if bool(getattr(owner, leaf).isnan().any()):
                raise UnsupportedModel(f"{folder}: tensor parallelism is not supported: {name}.{leaf} is not computed")
