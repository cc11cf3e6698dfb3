"""Chooses a target's runtime: the native one if it can compute the model on a CPU, else PyTorch.

Imports neither, so a process with the native runtime never loads torch.
"""

from __future__ import annotations

from pathlib import Path

from covey.contracts.errors import SettingError, UnsupportedModel
from covey.contracts.profile import TargetSettings
from covey.models import dtypes
from covey.models.native import BLOCK, KINDS, SMALL, architecture, compiled
from covey.process import cpu

NATIVE, TORCH = "native", "torch"
DRIVERS = (Path("/proc/driver/nvidia"), Path("/dev/nvidiactl"), Path("/dev/kfd"), Path("/dev/dxg"))


def runtime_of(folder: str | Path, settings: TargetSettings) -> str:
    """Return the runtime for the settings. Raises SettingError if they ask for one that cannot serve the model."""
    if settings.runtime == TORCH and settings.dtype != SMALL:
        return TORCH
    reason = why_not(folder, settings)
    if reason and settings.dtype == SMALL:
        raise _no_bytes(reason)
    if reason and settings.runtime == NATIVE:
        raise SettingError(f"target.runtime: got 'native', but {reason}; use auto or torch")
    return TORCH if reason else NATIVE


def check_bytes(folder: str | Path, settings: TargetSettings) -> None:
    """Raise SettingError for a target in bytes that the native runtime cannot serve by its files. Compiles nothing."""
    if settings.dtype == SMALL and (reason := _unfit(folder, settings)):
        raise _no_bytes(reason)


def _no_bytes(reason: str) -> SettingError:
    return SettingError(f"target.dtype: got 'int8', which needs the native runtime, but {reason}; use dtype auto")


def why_not(folder: str | Path, settings: TargetSettings) -> str:
    """Return why the native runtime cannot serve the folder's model, or ""."""
    if reason := _unfit(folder, settings):
        return reason
    dtype = dtypes.on_cpu(settings.dtype, folder)
    return compiled.ensure([compiled.variant_of(architecture.read(Path(folder)), dtype)])


def _unfit(folder: str | Path, settings: TargetSettings) -> str:
    if settings.runtime == TORCH:
        return "target.runtime is torch"
    if settings.dtype == SMALL and not cpu.multiplies_bytes():
        return f"{cpu.label()} does not multiply bytes"
    if settings.device == "cuda" or (settings.device == "auto" and has_gpu()):
        return "the target is on a GPU, and the native runtime needs a CPU"
    if settings.block_size != BLOCK:
        return f"target.block_size is {settings.block_size}, and the native runtime needs {BLOCK}"
    try:
        dtype = dtypes.on_cpu(settings.dtype, folder)
        if dtype not in KINDS:
            return f"the target's dtype is {dtype}, and the native runtime needs {' or '.join(KINDS)}"
        architecture.read(Path(folder))
    except UnsupportedModel as error:
        return str(error)
    return ""


def may_have_gpu() -> bool:
    """Return whether there is a driver, without which PyTorch sees no GPU."""
    return any(path.exists() for path in DRIVERS)


def has_gpu() -> bool:
    """Return whether PyTorch sees a GPU. Without a driver, do not import PyTorch to find out."""
    if not may_have_gpu():
        return False
    import torch

    return torch.cuda.is_available()
