"""A digest of all that the speed of a model depends on: weights, settings, this machine and its libraries; or of what
was made with a model.

Timings kept under it hold as long as it stays. It knows no timings.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from covey.process import cpu

STRIDE, SAMPLE = 1 << 20, 4096  # bytes: of each stretch of a weights file so many are read, and all of a small one


def identity(what: Any, files: Iterable[Path] = ()) -> str:
    """Return a digest of plain data and the files beside it, on this machine."""
    return digest([what, machine()], files)


def digest(what: Any, files: Iterable[Path] = ()) -> str:
    """Return a digest of plain data and the files beside it, wherever they are."""
    found = hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode())
    for path in sorted(files):
        found.update(f"{path.name} {path.stat().st_size}".encode())
        _sample(path, found.update)
    return found.hexdigest()


def of_model(folder: str | Path, settings: Any) -> str:
    """Return the identity of the model in a folder of Hugging Face's form, in this process with its threads as they are
    now. Weights are sampled, a page of each megabyte: training changes them all, and reading a large model whole would
    take minutes."""
    import torch

    from covey.models.verdicts import here

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return identity([settings, here(device)], files_of(Path(folder)))


def files_of(folder: Path) -> list[Path]:
    """Return the files that make a model what it is."""
    return [*folder.glob("*.safetensors"), *folder.glob("config.json")]


def machine() -> list[Any]:
    """Return the CPU's kind and what it can do, and how many of its cores this process may use."""
    return [platform.machine(), cpu.described(), cpu.cores()]


def _sample(path: Path, update: Any) -> None:
    with path.open("rb") as file:
        while piece := file.read(SAMPLE):
            update(piece)
            file.seek(STRIDE - SAMPLE, os.SEEK_CUR)
