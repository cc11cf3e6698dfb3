"""The type that a model is served in, by its files and this processor. Imports no torch."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path

from covey.models import refusals, stored
from covey.process import cpu

log = logging.getLogger(__name__)
_STORED = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def on_cpu(name: str, folder: str | Path) -> str:
    """Return the type that a target is served in on a CPU; see `served`."""
    return served(name, folder, "bfloat16" if cpu.multiplies_bfloat16() else "float32", halves=False)


def served(name: str, folder: str | Path, best: str, halves: bool) -> str:
    """Return the type that a target is served in: `auto` is its checkpoint's own, so that its text is the checkpoint's.
    Two-byte types that the device does not multiply (it does float16 with `halves`) become its `best`, or float32."""
    if name != "auto":
        return name
    own = _own(Path(folder))
    if own in ("float32", "float64"):
        return own
    if own != "float16":
        return best
    if halves:
        return own
    log.warning("%s is in float16, which no CPU multiplies well: it is served in float32", folder)
    return "float32"


def _own(folder: Path) -> str:
    """Return the type that the configuration names, else that of most stored numbers; "" where neither says it."""
    written = refusals.described(folder)
    said = str(written.get("dtype") or written.get("torch_dtype") or "")
    if said or not (files := sorted(folder.glob("*.safetensors"))):
        return said.removeprefix("torch.")
    counts: Counter[str] = Counter()
    for tensor in stored.tensors(files).values():
        counts[tensor.dtype] += tensor.size
    return _STORED.get(counts.most_common(1)[0][0], "") if counts else ""
