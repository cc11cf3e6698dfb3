"""Keys and values in memory of ours, in the blocks that OpenVINO's paged attention reads: [blocks, heads, 32, dim].

A plane is one layer's keys or its values; `Reserve` lets them grow and shrink where they are. Blocks behind those are
spare: they belong to whoever runs passes, and nobody's table names them. Knows no sequences and no owners.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov

from covey.models.openvino import BLOCK
from covey.models.openvino.graph import kind_of
from covey.models.reserve import Reserve
from covey.types import Ints


class KeyValuePool:
    """`blocks` blocks that may become `most`, and `spare` more. One thread calls, and never while a pass runs."""

    def __init__(
        self, layers: int, heads: int, head_dim: int, *, dtype: str, blocks: int, most: int = 0, spare: int = 1
    ) -> None:
        kind = kind_of(dtype)
        self.reserve = Reserve(
            2 * layers, heads * BLOCK * head_dim * kind.size, blocks=blocks, most=max(most, blocks), spare=spare
        )
        planes = self.reserve.bytes.view(f"u{kind.size}").reshape(2 * layers, -1, heads, BLOCK, head_dim)
        self._planes: npt.NDArray[Any] = planes
        self.spare = range(planes.shape[1] - spare, planes.shape[1])
        self.tensors = [ov.Tensor(plane, ov.Shape(plane.shape), kind) for plane in planes]  # keys, values, keys, ...

    @property
    def bytes_per_block(self) -> int:
        return self.reserve.bytes_per_block

    def copy_slots(self, source: Ints, destination: Ints) -> None:
        """Copies keys and values of all layers between slots; all are read before any is written."""
        planes = self._planes
        planes[:, destination // BLOCK, :, destination % BLOCK] = planes[:, source // BLOCK, :, source % BLOCK]

    def clear_slots(self, slots: Ints) -> None:
        """Sets keys and values of all layers to zero."""
        self._planes[:, slots // BLOCK, :, slots % BLOCK] = 0

    def fill(self, rng: np.random.Generator, blocks: int) -> None:
        """Sets the first blocks to random numbers, as unlike in each plane as keys and values are."""
        numbers = rng.standard_normal(self._planes[0, :blocks].shape, np.float32).reshape(-1)
        width = self._planes.itemsize
        for place, plane in enumerate(self._planes):
            bits = np.roll(numbers, 1009 * place).view(np.uint32)
            plane[:blocks] = (bits >> (32 - 8 * width)).reshape(plane[:blocks].shape)

    def clear(self, blocks: int) -> None:
        """Sets the first blocks to zero."""
        self._planes[:, :blocks] = 0

    def copy_blocks(self, sources: Ints, destinations: Ints) -> None:
        """Copies whole blocks of all layers. No destination may be given twice, or be a source."""
        self.reserve.move_blocks(sources, destinations)
