"""The GPU path: kernels in the Triton language, and the passes, chains and draws that they make up.

The rest of the package imports only these functions. They import the rest of the path when they are called. The
`triton` package may not be installed, and a process without a GPU needs none of the path.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from covey.gpu.kernels.draws import DeviceDraw
    from covey.gpu.model import DeviceModel
    from covey.gpu.stepper import DeviceStepper

__all__ = ["DeviceDraw", "DeviceModel", "drawing", "open_model", "stepper_of", "why_not"]


@lru_cache(maxsize=16)
def why_not(device: torch.device) -> str:
    """Return why the kernels cannot run on the device, or "" if they can. The `triton` package or the C compiler that
    launches kernels may be missing."""
    import torch

    try:
        from covey.gpu.kernels.norms import gate
    except ModuleNotFoundError as error:
        return f"{error}: install it with pip install 'covey[cuda]'"
    both = torch.zeros(1, 2, device=device)
    try:
        gate[(1, 1)](both, torch.empty(1, 1, device=device), SIZE=1, S=16)
    except Exception as error:  # compilers, drivers and devices each raise their own errors
        return f"{type(error).__name__}: {error}"
    return ""


def open_model(built: Callable[[type[DeviceModel]], DeviceModel], *, of_head: bool = False) -> DeviceModel | str:
    """Return the model, or the head, that `built` makes from the class it is given, or why the kernels cannot compute
    it."""
    from triton.errors import TritonError

    from covey.contracts.errors import UnsupportedModel
    from covey.gpu.head import DeviceHead
    from covey.gpu.model import DeviceModel

    try:
        return built(DeviceHead if of_head else DeviceModel)
    except (UnsupportedModel, TritonError) as error:
        return str(error)


def stepper_of(model: DeviceModel, depth: int) -> DeviceStepper:
    """Return the model's stepper, with chains of up to `depth` recorded."""
    from covey.gpu.head import DeviceHead
    from covey.gpu.stepper import DeviceHeadStepper, DeviceStepper

    stepper = DeviceHeadStepper(model) if isinstance(model, DeviceHead) else DeviceStepper(model)
    stepper.record(depth)
    return stepper


def drawing(rows: int, vocab: int, device: torch.device) -> DeviceDraw:
    """Return a `DeviceDraw` for up to `rows` rows at once; the kernels must run on the device."""
    from covey.gpu.kernels.draws import DeviceDraw

    return DeviceDraw(rows, vocab, device)
