"""Whether kernels run on a device: their language may not be installed, and a C compiler is needed to launch them."""

from __future__ import annotations

from functools import lru_cache

import torch


@lru_cache(maxsize=16)
def why_not(device: torch.device) -> str:
    """Return what keeps the kernels from running on the device, "" where nothing does."""
    try:
        from covey.models.kernels.norms import gate
    except ModuleNotFoundError as error:
        return f"{error}: pip install 'covey[cuda]' brings it"
    both = torch.zeros(1, 2, device=device)
    try:
        gate[(1, 1)](both, torch.empty(1, 1, device=device), SIZE=1, S=16)
    except Exception as error:  # compilers, drivers and devices each raise their own
        return f"{type(error).__name__}: {error}"
    return ""
