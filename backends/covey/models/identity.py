"""A digest of all that a model's speed depends on: weights, settings, this machine and its libraries. Also a digest of
the data that something was made from.

Timings kept under a digest are valid while it stays the same. This module knows no timings.
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

STRIDE, SAMPLE = 1 << 20, 4096  # bytes: SAMPLE bytes are read of every STRIDE of a weights file


def identity(what: Any, files: Iterable[Path] = ()) -> str:
    """Return a digest of plain data and files, on this machine."""
    return digest([what, machine()], files)


def digest(what: Any, files: Iterable[Path] = ()) -> str:
    """Return a digest of plain data and files, independent of the machine."""
    found = hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode())
    for path in sorted(files):
        found.update(f"{path.name} {path.stat().st_size}".encode())
        _sample(path, found.update)
    return found.hexdigest()


def of_model(folder: str | Path, settings: Any) -> str:
    """Return the identity of the model in a Hugging Face folder, in this process with its current number of threads.
    Only a page of each megabyte of the weights is read: training changes all pages, and reading a large model takes
    minutes."""
    import torch

    from covey.models.verdicts import here

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return identity([settings, here(device)], files_of(Path(folder)))


def files_of(folder: Path) -> list[Path]:
    """Return the files that define a model."""
    return [*folder.glob("*.safetensors"), *folder.glob("config.json")]


def machine() -> list[Any]:
    """Return the CPU's kind and features, and how many of its cores this process may use."""
    return [platform.machine(), cpu.described(), cpu.cores()]


def _sample(path: Path, update: Any) -> None:
    with path.open("rb") as file:
        while piece := file.read(SAMPLE):
            update(piece)
            file.seek(STRIDE - SAMPLE, os.SEEK_CUR)
