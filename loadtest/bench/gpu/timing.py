"""Measures by the device's own clock how long it works; gives None if the device is not a GPU."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from statistics import median

import torch

Work = Callable[[], object]
REPEATS = 30


def queued(work: Work, device: torch.device, repeats: int = REPEATS) -> float | None:
    """Return the seconds on the device of one run of `work`, the median of consecutive runs. The host must enqueue them
    faster than the device works them off. Without a GPU `work` runs once, and the result is None."""
    if device.type != "cuda":
        work()
        return None
    for _ in range(3):
        work()
    torch.cuda.synchronize(device)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    marks[0].record()
    for mark in marks[1:]:
        work()
        mark.record()
    torch.cuda.synchronize(device)
    passed: float = median(before.elapsed_time(after) for before, after in pairwise(marks))
    return passed / 1000


def milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds


def over(above: float | None, below: float | None) -> float | None:
    """Return a ratio of two measurements; None if either is missing."""
    return above / below if above is not None and below else None
