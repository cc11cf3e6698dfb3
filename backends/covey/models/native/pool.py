"""Keys and values in blocks of 32 slots, in attention's layout, in memory that grows and shrinks in place.

This module knows no sequences and no owners.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from covey.contracts.types import Ints
from covey.models.native import LANES
from covey.models.native.attention import SLOTS
from covey.models.native.sizes import planes_of_taps
from covey.models.native.tiles import FLOATS, PAIRS
from covey.models.reserve import Reserve


class KeyValuePool:
    """`blocks` blocks, which may grow to `most`, and one more for slots that are never read. Only one thread may call,
    and never during a pass."""

    def __init__(
        self, layers: int, heads: int, dim: int, kind: int, *, blocks: int, most: int = 0, taps: int = 0
    ) -> None:
        """`kind` is that of products of queries and keys. Each slot also keeps `taps` bfloat16 numbers."""
        number: type[np.generic] = np.float32 if kind == FLOATS else np.uint16
        vectors = -(-dim // LANES) * LANES
        size = heads * SLOTS * vectors * np.dtype(number).itemsize
        more = planes_of_taps(taps, size)
        self.reserve = Reserve(2 * layers + more, size, blocks=blocks, most=max(most, blocks))
        planes: npt.NDArray[Any] = self.reserve.bytes.view(number)
        total = planes.shape[1]
        self.keys = planes[:layers].reshape(layers, total, heads, vectors * SLOTS)
        self.values = planes[layers : 2 * layers].reshape(layers, total, heads, SLOTS, vectors)
        pair = 2 if kind == PAIRS else 1
        self._keys = self.keys.reshape(layers, total, heads, vectors // pair, SLOTS, pair)
        self.taps = self.reserve.bytes.view(np.uint16)[2 * layers :].reshape(more, total, SLOTS, size // (2 * SLOTS))
        self.padding_slot = (total - 1) * SLOTS

    def copy_slots(self, source: Ints, destination: Ints) -> None:
        """Copy keys and values of all layers between slots. All are read before any is written."""
        (block, place), (to, there) = np.divmod(source, SLOTS), np.divmod(destination, SLOTS)
        self._keys[:, to, :, :, there] = self._keys[:, block, :, :, place]
        self.values[:, to, :, there] = self.values[:, block, :, place]
        self.taps[:, to, there] = self.taps[:, block, place]

    def clear_slots(self, slots: Ints) -> None:
        """Set keys and values of these slots to zero in all layers."""
        block, place = np.divmod(slots, SLOTS)
        self._keys[:, block, :, :, place] = 0
        self.values[:, block, :, place] = 0
        self.taps[:, block, place] = 0
