"""Attention of long prompt chunks by PyTorch's own flash attention, over keys brought together row by row: such rows
are bound by arithmetic, and a library's kernel does most of it. Knows nothing of what is decoded beside them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
import triton
from torch.nn.attention.bias import causal_lower_right

from covey.gpu.kernels.gather import TOGETHER, gather_row
from covey.gpu.store import KVStore
from covey.models.lanes import Windows

LONG = 128  # queries of a row from which on bringing its keys together pays


@dataclass(frozen=True, slots=True)
class _Row:
    start: int  # the first of its packed tokens
    stop: int
    slots: torch.Tensor  # where its keys are


class Prompts:
    """The rows of a pass whose queries are many and see all that is before them."""

    def __init__(self, windows: Windows, store: KVStore) -> None:
        counts = windows.counts
        self.apart: npt.NDArray[np.bool_] = counts >= LONG
        if windows.bits.shape[1]:
            self.apart &= ~np.logical_or.reduceat(windows.bits.any(axis=1), windows.offsets[:-1])
        self._store = store
        self._rows = []
        for row in np.flatnonzero(self.apart).tolist():
            stop = int(windows.offsets[row + 1])
            at = np.arange(windows.seen[stop - 1], dtype=np.int32)
            size = np.int32(store.layout.block_size)
            slots = windows.tables[row, at // size] * size + at % size
            self._rows.append(_Row(int(windows.offsets[row]), stop, torch.from_numpy(slots).to(store.device)))

    def attend(self, queries: torch.Tensor, out: torch.Tensor, layer_offset: int, scale: float) -> None:
        """Write the rows' part of `out` [tokens, heads, head_dim]."""
        for row in self._rows:
            keys, values = self._gathered(row.slots, layer_offset)
            mask = causal_lower_right(row.stop - row.start, len(row.slots))
            query = queries[row.start : row.stop].transpose(0, 1)
            result = F.scaled_dot_product_attention(
                query[None], keys[None], values[None], attn_mask=mask, scale=scale, enable_gqa=True
            )
            out[row.start : row.stop] = result[0].transpose(0, 1)

    def _gathered(self, slots: torch.Tensor, layer_offset: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values, [key heads, keys, head_dim] each."""
        store, layout, count = self._store, self._store.layout, len(slots)
        heads, dim = layout.kv_heads, layout.head_dim
        both = torch.empty(2, heads, count, dim, dtype=store.dtype, device=store.device)
        gather_row[(triton.cdiv(count, TOGETHER), 2 * heads)](
            store.pool,
            store.offsets,
            slots,
            both,
            count,
            layer_offset,
            DIM=dim,
            BLOCK_SIZE=layout.block_size,
            BLOCK_STRIDE=layout.block,
            SEGMENT=layout.segment_blocks,
            D=triton.next_power_of_2(dim),
            S=TOGETHER,
        )
        return both[0], both[1]
