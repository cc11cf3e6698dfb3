"""Cuts the attention of a pass among programs: to suit the pass, or always alike.

Where it is always alike, a token's sums are taken in one order whatever else is in its pass: see
`covey.gpu.layers.Fixed` for the products.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

MOST_ROWS = 128  # the tallest product: queries of a tile times query heads of a key head
MOST_WIDE = 32  # the same of float32, which takes three products and twice the registers
FIXED_ROWS = 64  # the same where it is always alike; one instruction multiplies them
PROGRAMS_PER_CORE = 2  # so that long contexts keep all of a GPU busy
MOST_PARTS = 32
LEAST_SPAN, MOST_SPANS = 256, 64  # keys of a fixed part; parts of the longest context
PARTS_BYTES = 512 << 20  # the largest pass of the longest contexts has so many of fixed parts' results at once


@dataclass(frozen=True, slots=True)
class Tiling:
    """Cuts attention up, for a model whose key heads have `share` query heads each, on a device that `programs` keep
    busy; `wide` is whether it is of float32. With a `span` it is the same for every pass: `spans` parts of so many
    keys, tiles of so many queries. Else few programs read a row's keys, and no more than keep the device busy."""

    share: int
    kv_heads: int
    programs: int
    wide: bool = False
    span: int = 0
    spans: int = 0

    def queries(self, wanted: int) -> int:
        """Return the most queries of a row that one program takes, where rows have up to `wanted`."""
        rows = MOST_WIDE if self.wide else FIXED_ROWS if self.span else MOST_ROWS
        most = max(1, rows // self.share).bit_length() - 1
        return 1 << (most if self.span else min((wanted - 1).bit_length(), most))

    def parts(self, tiles: int) -> int:
        """Return how many parts contexts are split into, in a pass of so many tiles."""
        if self.span:
            return self.spans
        spread = self.programs // (tiles * self.kv_heads)
        return min(1 << max(spread.bit_length() - 1, 0), MOST_PARTS)


def span_of(positions: int, line_bytes: int) -> int:
    """Return how many keys a fixed part has, for contexts of up to so many and results of so many bytes a part."""
    most = max(1, min(MOST_SPANS, PARTS_BYTES // line_bytes))
    return max(LEAST_SPAN, 1 << (-(-positions // most) - 1).bit_length())


def programs_of(device: torch.device) -> int:
    """Return how many programs of attention keep all of the device busy."""
    cores = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 8
    return PROGRAMS_PER_CORE * int(cores)
