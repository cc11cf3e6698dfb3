"""Turns a model with quantised weights into one with plain weights: once, and only on request, because it takes the
plain model's memory.

Its weights are what the quantised ones stand for (`models/quantised.py`), rounded once to the type that its
configuration names. Files are read a weight at a time and written a file at a time.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.contracts.errors import UnsupportedModel
from covey.models import refusals, stored
from covey.server import derived

if TYPE_CHECKING:
    import torch

SETTINGS = "quantization_config"
INDEX = "model.safetensors.index.json"
WIDE = ("float32", "float16", "bfloat16")
log = logging.getLogger(__name__)


def plain(folder: Path, state: Path) -> Path:
    """Return the folder itself if its weights are plain, else that of the same model with plain ones."""
    config = refusals.described(folder)
    settings = config.get(SETTINGS)
    if not settings:
        log.info("%s: its weights are plain as they are", folder)
        return folder
    refusals.by_config(folder, {**config, SETTINGS: None}.get)
    from covey.models import quantised  # torch takes seconds to import

    reason = quantised.refused(settings)
    if reason:
        raise UnsupportedModel(
            f"{folder}: {reason} cannot be made plain: serve the one that it was made from (base_model of its card)"
        )
    files = refusals.weight_files(folder)

    def build(building: Path) -> None:
        log.info("%s: its weights are made plain, once", folder)
        derived.copy((path for path in derived.matching(folder, derived.SMALL) if path.name != INDEX), building)
        told = {key: value for key, value in config.items() if key not in (SETTINGS, "compression_config")}
        (building / "config.json").write_text(json.dumps(told, indent=1), encoding="utf-8")
        held = _write(folder, files, building, settings, str(config.get("dtype") or config.get("torch_dtype")))
        if len(files) > 1:
            index = {"metadata": {}, "weight_map": held}
            (building / INDEX).write_text(json.dumps(index, indent=1), encoding="utf-8")

    return derived.derive(state, "plain", folder, [*derived.matching(folder, derived.SMALL), *files], build)


def _write(folder: Path, files: list[Path], to: Path, settings: Mapping[str, Any], dtype: str) -> dict[str, str]:
    """Write a file of plain weights for each file of the model; returns in which file each tensor is."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    from covey.models import quantised

    kept: torch.dtype = getattr(torch, dtype if dtype in WIDE else "bfloat16")
    modules: dict[str, dict[str, stored.Stored]] = {}
    for name, tensor in stored.tensors(files).items():
        module, part = quantised.split(name)
        modules.setdefault(module, {})[part] = tensor
    held: dict[str, str] = {}
    with ExitStack() as stack:
        opened = {path: stack.enter_context(safe_open(str(path), "pt")) for path in files}
        for path in files:
            written: dict[str, torch.Tensor] = {}
            for module, parts in modules.items():
                if min(part.file for part in parts.values()) != path:
                    continue
                read = {
                    part: opened[tensor.file].get_tensor(quantised.joined(module, part))
                    for part, tensor in parts.items()
                }
                found = quantised.plain(f"{folder}: {module}", read, settings)
                if found is not None:
                    written[module + found[0]] = found[1].to(kept).contiguous()
                else:
                    stay = {part: each for part, each in read.items() if part in ("", "weight")}
                    written |= {quantised.joined(module, part): each for part, each in stay.items()}
            save_file(written, to / path.name, metadata={"format": "pt"})
            held |= dict.fromkeys(written, path.name)
    return held
