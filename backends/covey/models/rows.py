"""Rows brought to counts and pieces in which libraries compute each of them alike; knows nothing of models."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

_GRAIN = 32768  # elements from which PyTorch splits an elementwise call between threads
_LANES = 64  # elements that its vectors divide
FEW = 16  # rows up to which every count has a product of its own


def padded(count: int, granule: int) -> int:
    """Return the row count that a product of `count` rows is brought to, at most an eighth more: libraries compile a
    product for each count that they meet, which takes as long as dozens of calls."""
    step = max(1, (1 << count.bit_length()) // 16) if count > FEW else 1
    return -(-count // math.lcm(step, granule)) * math.lcm(step, granule)


def by_rows(apply: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Apply an elementwise function to pieces of rows, which are computed alike in any batch. PyTorch splits large
    calls between threads at any element, and takes what is left at the end of a piece by another function, whose last
    bit may differ: so pieces are too small to be split, and end where vectors end."""
    width = x.shape[-1]
    step = max(1, (_GRAIN - 1) // width) if width % _LANES == 0 or not x.is_contiguous() else 1
    if x.numel() <= step * width or x.device.type != "cpu":
        return apply(x)
    return torch.cat([apply(piece) for piece in x.reshape(-1, width).split(step)]).view(x.shape)
