"""The choice of a target's runtime: the native one, where it can, on a CPU; PyTorch everywhere else.

The rule stands here alone. Imports neither: a process that the native runtime serves never has torch.
"""

from __future__ import annotations

from pathlib import Path

from covey.contracts.errors import SettingError, UnsupportedModel
from covey.contracts.profile import TargetSettings
from covey.models import dtypes
from covey.models.native import BLOCK, KINDS, architecture, compiled

NATIVE, TORCH = "native", "torch"
DRIVERS = (Path("/proc/driver/nvidia"), Path("/dev/nvidiactl"), Path("/dev/kfd"), Path("/dev/dxg"))


def runtime_of(folder: str | Path, settings: TargetSettings) -> str:
    """Return the runtime that the settings ask for. Raises SettingError where that cannot serve the folder's model."""
    if settings.runtime == TORCH:
        return TORCH
    reason = why_not(folder, settings)
    if reason and settings.runtime == NATIVE:
        raise SettingError(f"target.runtime: got 'native', but {reason}; use auto or torch")
    return TORCH if reason else NATIVE


def why_not(folder: str | Path, settings: TargetSettings) -> str:
    """Return what keeps the native runtime from serving the folder's model, "" where nothing does."""
    if settings.device == "cuda" or (settings.device == "auto" and has_gpu()):
        return "the target is on a GPU: it computes on a CPU"
    if settings.block_size != BLOCK:
        return f"target.block_size is {settings.block_size}: its blocks have {BLOCK} tokens"
    try:
        dtype = dtypes.on_cpu(settings.dtype, folder)
        if dtype not in KINDS:
            return f"the target's type is {dtype}: it computes in {' or '.join(KINDS)}"
        of = architecture.read(Path(folder))
    except UnsupportedModel as error:
        return str(error)
    return compiled.ensure([compiled.variant_of(of, dtype)])


def may_have_gpu() -> bool:
    """Return whether there is a driver, without which PyTorch sees no GPU."""
    return any(path.exists() for path in DRIVERS)


def has_gpu() -> bool:
    """Return whether PyTorch sees a GPU."""
    if not may_have_gpu():
        return False
    import torch

    return torch.cuda.is_available()
