"""Makes the states that a head reads from taps of a pass, where PyTorch or Covey's kernels compute the target.

The states of a pass lie with the keys of its tokens, in planes behind the layers of the KV pool. So they are found,
copied, moved and freed with their keys. See `heads` for what states and taps are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F

from covey.contracts.types import Words
from covey.models.attention import Shape
from covey.models.heads import Taps, planes


class StatesOf:
    """Makes states, and lays them out as planes of a pool with heads of this shape."""

    def __init__(self, taps: Taps | None, shape: Shape, dtype: torch.dtype, device: torch.device) -> None:
        """Without taps there are no planes."""
        self._heads, self._dim = 2 * shape.kv_heads, shape.head_dim
        self.width = 0 if taps is None else len(taps.fc)
        self.layers = () if taps is None else taps.layers
        self.planes = planes(self.width, shape.kv_heads, shape.head_dim)
        if taps is not None:
            self._fc = torch.from_numpy(taps.fc).to(device, dtype)
            self._norms = [torch.from_numpy(factors).to(device) for factors in taps.norms]
            self._eps = taps.eps

    def laid(self, tapped: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the states of taps, each [tokens, width of the target], as [planes, heads, tokens, head_dim]."""
        taps = torch.cat(list(tapped), -1)
        for factors in self._norms:
            parts = taps.float().unflatten(-1, factors.shape)
            scale = (parts.square().mean(-1, keepdim=True) + self._eps).rsqrt()
            taps = (parts * scale * factors).flatten(-2).to(taps.dtype)
        states = F.linear(taps, self._fc)
        room = self.planes * self._heads * self._dim
        laid = F.pad(states, (0, room - self.width)).view(len(states), self.planes, self._heads, self._dim)
        return laid.permute(1, 2, 0, 3).contiguous()

    def read(self, laid: torch.Tensor) -> Words:
        """Return states [tokens, width] from that layout."""
        states = laid.permute(2, 0, 1, 3).flatten(1)[:, : self.width].to(torch.bfloat16).contiguous()
        return states.view(torch.int16).cpu().numpy().view(np.uint16)
