"""Verdicts about this machine's numerics, kept from one load to the next.

A verdict holds for these libraries on this machine, this number of threads and these shapes. Its key includes the code
that found it, so changed code decides anew.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from covey_client import files

F = TypeVar("F", bound=Any)
log = logging.getLogger(__name__)

# The code that decides which products are computed.
_SOURCES = (
    "agreement.py",
    "attention.py",
    "loading.py",
    "model.py",
    "modules.py",
    "numerics.py",
    "rows.py",
    "states.py",
)
_SETTINGS = ("MKL_", "ONEDNN_", "DNNL_", "ATEN_CPU_", "OMP_NUM_", "KMP_")  # variables that change libraries' behaviour


def here(*facts: object) -> str:
    """Return the key of a question about PyTorch on this machine; `facts` are its other parameters."""
    import torch

    asked = {
        "facts": [str(fact) for fact in facts],
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "libraries": torch.__config__.show(),
        "cpu": {name: str(value) for name, value in sorted(torch.cpu.get_capabilities().items())},
        "settings": {name: value for name, value in sorted(os.environ.items()) if name.startswith(_SETTINGS)},
        "code": [hashlib.sha256(Path(__file__).with_name(name).read_bytes()).hexdigest() for name in _SOURCES],
    }
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()


def verdict(folder: Path | None, key: str, find: Callable[[], F | None], kind: Callable[..., F]) -> F | None:
    """Return the settings that make passes invariant, or None if none do. This is the verdict kept in `folder` under
    `key`, else the one that `find` returns, which is then kept. It is a dataclass, which `kind` makes from its
    fields."""
    path = None if folder is None else folder / f"{key}.json"
    if path is not None and path.is_file():
        try:
            kept = json.loads(path.read_text())["tiling"]
            return None if kept is None else kind(**kept)
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("%s is not a verdict (%s): trying this machine's numerics again", path, error)
    found = find()
    if path is not None:
        keep(path, {"tiling": None if found is None else asdict(found)})
    return found


def keep(path: Path, content: object) -> None:
    """Write a verdict. If that fails, only the next load is slower."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        files.replace(path, json.dumps(content))
    except OSError as error:
        log.warning("cannot keep %s, so the next load finds it out again: %s", path, error)
