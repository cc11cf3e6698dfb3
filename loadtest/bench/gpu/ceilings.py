"""Measures the part `ceilings` of the bench `gpu`: the device's limits, without a model."""

from __future__ import annotations

from collections.abc import Callable

import torch

from covey.contracts.types import JsonDict
from loadtest.bench.gpu.rig import Rig
from loadtest.bench.gpu.timing import over, queued

COPIED = 4 << 30  # bytes of each buffer, far more than any cache
SIDE = 8192  # of the matrices


def ceilings(rig: Rig, found: JsonDict) -> None:
    """Measure the speed of a copy and a matrix product; a copy reads and writes, and both count."""
    found |= {"copy_bytes_per_s": None, "product_flops_per_s": None}
    if not rig.on_gpu:
        return
    free, _ = torch.cuda.mem_get_info(rig.device)
    size = min(COPIED, free // 8)
    found["copy_bytes_per_s"] = over(2 * size, queued(_copy_of(rig, size), rig.device))
    left, right = (torch.randn(SIDE, SIDE, dtype=torch.bfloat16, device=rig.device) for _ in range(2))
    out = torch.empty_like(left)
    found["product_flops_per_s"] = over(2 * SIDE**3, queued(lambda: torch.mm(left, right, out=out), rig.device))


def _copy_of(rig: Rig, size: int) -> Callable[[], object]:
    """Return a copy of this many bytes from one place of the device to another."""
    source = torch.ones(size, dtype=torch.uint8, device=rig.device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def bandwidth(rig: Rig) -> float | None:
    """Return the copy's bytes a second; measure them now if no part has."""
    if "ceilings" not in rig.results:
        ceilings(rig, rig.results.setdefault("ceilings", {}))
    found: float | None = rig.results["ceilings"].get("copy_bytes_per_s")
    return found
