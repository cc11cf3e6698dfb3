"""The dtype that training computes in: bfloat16 if the device multiplies it, else float32."""

from __future__ import annotations

import torch

from covey.models import loading


def fastest(device: torch.device) -> torch.dtype:
    """Return the dtype in which the device multiplies fastest."""
    return loading.choose_dtype("auto", device)


def mixed(device: torch.device) -> torch.autocast:
    """Return a context in which products are computed in that dtype."""
    return torch.autocast(device.type, torch.bfloat16, enabled=fastest(device) == torch.bfloat16)
