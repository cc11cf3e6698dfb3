"""Collects the facts on which a result depends: machine, versions, settings."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from covey.contracts.types import JsonDict
from covey.process import cpu

PACKAGES = (
    "covey",
    "torch",
    "triton",
    "transformers",
    "numpy",
    "tokenizers",
    "nvidia-pytriton",
    "tritonclient",
    "grpcio",
)


def hardware() -> JsonDict:
    return {
        "processor": cpu.label(),
        "cores": cpu.cores(),
        "memory_gb": round(_memory_bytes() / 1e9, 1),
        "gpu": _gpu(),
        "driver": _driver(),
        "system": platform.platform(),
        "load_average": [round(value, 2) for value in os.getloadavg()] if hasattr(os, "getloadavg") else None,
    }


def versions() -> JsonDict:
    found: JsonDict = {"python": platform.python_version(), "commit": _commit()}
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _gpu() -> str | None:
    import torch  # slow to import

    return str(torch.cuda.get_device_name()) if torch.cuda.is_available() else None


def _driver() -> str | None:
    """Return the version of NVIDIA's driver."""
    with suppress(OSError):
        found = re.search(r"\b\d+\.\d+(\.\d+)?\b", Path("/proc/driver/nvidia/version").read_text())
        return found[0] if found else None
    return None


def _commit() -> str | None:
    with suppress(OSError, subprocess.SubprocessError):
        words = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=10, check=False)
        return done.stdout.strip() or None
    return None
