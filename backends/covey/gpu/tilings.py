"""Cuts the attention of a pass among programs: either to suit the pass, or always the same way.

If it is always the same, a token's sums are taken in the same order in any pass.
`covey.gpu.layers.Fixed` does the same for products.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

MOST_ROWS = 128  # of a product: queries of a tile times query heads per key head
MOST_WIDE = 32  # MOST_ROWS in float32, which takes three products and twice the registers
FIXED_ROWS = 64  # MOST_ROWS if tiles are always the same; one instruction multiplies 64 rows
PROGRAMS_PER_CORE = 2  # so that long contexts keep a whole GPU busy
MOST_PARTS = 32
LEAST_SPAN, MOST_SPANS = 256, 64  # keys of a fixed part; parts of the longest context
PARTS_BYTES = 512 << 20  # bound on the results of all fixed parts, in the largest pass over the longest contexts


@dataclass(frozen=True, slots=True)
class Tiling:
    """Cuts attention for a model with `share` query heads per key head, in float32 if `wide`, on a device that
    `programs` programs keep busy. With a `span`, all passes are cut alike: into `spans` parts of `span` keys, and into
    tiles of one size. Otherwise a row's keys are read by few programs, and by no more than keep the device busy."""

    share: int
    kv_heads: int
    programs: int
    wide: bool = False
    span: int = 0
    spans: int = 0

    def queries(self, wanted: int) -> int:
        """Return the most queries of a row that one program takes, if rows have up to `wanted` queries."""
        rows = MOST_WIDE if self.wide else FIXED_ROWS if self.span else MOST_ROWS
        most = max(1, rows // self.share).bit_length() - 1
        return 1 << (most if self.span else min((wanted - 1).bit_length(), most))

    def parts(self, tiles: int) -> int:
        """Return how many parts contexts are split into, in a pass of `tiles` tiles."""
        if self.span:
            return self.spans
        spread = self.programs // (tiles * self.kv_heads)
        return min(1 << max(spread.bit_length() - 1, 0), MOST_PARTS)


def span_of(positions: int, line_bytes: int) -> int:
    """Return the keys of a fixed part, for contexts of up to `positions` tokens and `line_bytes` of results per
    part."""
    most = max(1, min(MOST_SPANS, PARTS_BYTES // line_bytes))
    return max(LEAST_SPAN, 1 << (-(-positions // most) - 1).bit_length())


def programs_of(device: torch.device) -> int:
    """Return how many programs of attention keep the whole device busy."""
    cores = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 8
    return PROGRAMS_PER_CORE * int(cores)
