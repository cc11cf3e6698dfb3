"""Keys and values in blocks of 32 slots, as attention reads them, in memory that grows and shrinks where it is.

Knows no sequences and no owners.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from covey.contracts.types import Ints, Words
from covey.models.native.attention import SLOTS
from covey.models.native.tiles import FLOATS, LANES, PAIRS
from covey.models.reserve import Reserve


class KeyValuePool:
    """`blocks` blocks that may become `most`, and one more, of slots that nobody reads. One thread calls, and never
    while a pass runs."""

    def __init__(
        self, layers: int, heads: int, dim: int, kind: int, *, blocks: int, most: int = 0, states: int = 0
    ) -> None:
        """`kind`: of the products of queries and keys. With `states` a slot also has so many numbers of a state."""
        number: type[np.generic] = np.float32 if kind == FLOATS else np.uint16
        vectors = -(-dim // LANES) * LANES
        size = heads * SLOTS * vectors * np.dtype(number).itemsize
        more = planes_of_states(states, size)
        self.reserve = Reserve(2 * layers + more, size, blocks=blocks, most=max(most, blocks))
        planes: npt.NDArray[Any] = self.reserve.bytes.view(number)
        total = planes.shape[1]
        self.keys = planes[:layers].reshape(layers, total, heads, vectors * SLOTS)
        self.values = planes[layers : 2 * layers].reshape(layers, total, heads, SLOTS, vectors)
        pair = 2 if kind == PAIRS else 1
        self._keys = self.keys.reshape(layers, total, heads, vectors // pair, SLOTS, pair)
        self._states = self.reserve.bytes.view(np.uint16)[2 * layers :].reshape(more, total, SLOTS, size // (2 * SLOTS))
        self._width = states
        self.padding_slot = (total - 1) * SLOTS

    def copy_slots(self, source: Ints, destination: Ints) -> None:
        """Copies keys and values of all layers between slots; all are read before any is written."""
        (block, place), (to, there) = np.divmod(source, SLOTS), np.divmod(destination, SLOTS)
        self._keys[:, to, :, :, there] = self._keys[:, block, :, :, place]
        self.values[:, to, :, there] = self.values[:, block, :, place]
        self._states[:, to, there] = self._states[:, block, place]

    def clear_slots(self, slots: Ints) -> None:
        """Sets keys and values of all layers to zero."""
        block, place = np.divmod(slots, SLOTS)
        self._keys[:, block, :, :, place] = 0
        self.values[:, block, :, place] = 0
        self._states[:, block, place] = 0

    def states(self, slots: Ints) -> Words:
        """The states [slots, width] that were put there."""
        found = self._states[:, slots // SLOTS, slots % SLOTS].swapaxes(0, 1)
        return np.ascontiguousarray(found.reshape(len(slots), found[:1].size)[:, : self._width])

    def put_states(self, slots: Ints, states: Words) -> None:
        planes, row = len(self._states), self._states.shape[-1]
        padded = np.zeros((len(slots), planes * row), np.uint16)
        padded[:, : self._width] = states
        self._states[:, slots // SLOTS, slots % SLOTS] = padded.reshape(len(slots), planes, row).swapaxes(0, 1)

    def clear(self) -> None:
        """Sets everything that may be used to zero."""
        self.reserve.bytes[:, : self.reserve.blocks] = 0


def planes_of_states(width: int, size: int) -> int:
    """How many planes with blocks of `size` bytes hold states of that width."""
    return -(-width * 2 * SLOTS // size)
