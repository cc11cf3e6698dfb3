"""A model's weights in the layout of tiles: panels of 32 columns, one after another, in pages of 2 MB.

With pages of 4 KB, address lookups cut a core's memory throughput to three quarters.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.contracts.errors import SettingError
from covey.contracts.types import Floats, Words
from covey.models.native.architecture import EMBEDDING, HEAD, Architecture
from covey.models.native.matmul import COLUMNS, PANEL_BYTES
from covey.models.native.stages import GATED, Held
from covey.models.native.tasks import first_of
from covey.models.native.tiles import AMX, BYTES, FLOATS, GROUP, PAIRS
from covey.models.stored import Stored

HUGE_PAGE = 2 << 20
MOST_SCALE = 1e30  # largest scale of an int8 row that keeps products finite
CHECKED = 1 << 18  # numbers checked at a time, which fit a core's cache
_EXPONENTS: dict[str, np.unsignedinteger[Any]] = {
    "BF16": np.uint16(0x7F80),
    "F16": np.uint16(0x7C00),
    "F32": np.uint32(0x7F800000),
}


def whole(width: int, of: int = GROUP) -> int:
    """Return the smallest multiple of `of` that is at least `width`."""
    return -(-width // of) * of


class Weights:
    """Owns the memory that `held` points to."""

    def __init__(self, of: Architecture, kind: int, threads: int) -> None:
        self._of, self._kind = of, kind
        self._taken = 0
        query, key, inner = of.heads * of.head_dim, of.kv_heads * of.head_dim, whole(of.inner)
        shapes = [
            (query + 2 * key, of.inputs * of.width),
            (of.width, query),
            (2 * inner, of.width),
            (of.width, of.inner),
        ]
        sizes = [whole(columns) * whole(rows) * PANEL_BYTES[kind] // COLUMNS for columns, rows in shapes]
        size = of.layers * sum(sizes) + whole(of.vocab_size) * whole(of.width) * PANEL_BYTES[kind] // COLUMNS
        self._map = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._map.madvise(mmap.MADV_HUGEPAGE)
        memory = np.frombuffer(self._map, np.uint8)
        self._memory = memory[-memory.ctypes.data % HUGE_PAGE :]
        self.bytes = size
        one, two, three, four = (np.zeros((of.layers, 2, columns), np.float32) for columns, _ in shapes)
        after = one, two, three, four
        panels = np.zeros((of.layers, 4), np.int64)
        norms = np.empty((2 * of.layers + 1, of.width), np.float32)
        has_norms = "model.layers.0.self_attn.q_norm.weight" in of.weights
        head_norms = np.empty((of.layers if has_norms else 0, 2, of.head_dim), np.float32)
        for layer in range(of.layers):
            at = f"model.layers.{layer}"
            norms[2 * layer] = self._vector(f"{at}.input_layernorm.weight")
            norms[2 * layer + 1] = self._vector(f"{at}.post_attention_layernorm.weight")
            if has_norms:
                head_norms[layer] = [self._vector(f"{at}.self_attn.{each}_norm.weight") for each in "qk"]
            names = [
                [f"{at}.self_attn.{each}_proj" for each in "qkv"],
                [f"{at}.self_attn.o_proj"],
                [f"{at}.mlp.gate_proj", f"{at}.mlp.up_proj"],
                [f"{at}.mlp.down_proj"],
            ]
            for place, each in enumerate(names):
                panels[layer, place] = self._packed(each, after[place][layer])
        norms[-1] = self._vector("model.norm.weight")
        state_norm = self._vector("model.layers.0.hidden_norm.weight") if of.inputs == 2 else np.zeros(0, np.float32)
        if (three[:, 0] == 1).all() and not three[:, 1].any():
            after = one, two, three[:, :, :0].copy(), four
        after_head = np.zeros((2, of.vocab_size), np.float32)
        name = EMBEDDING if of.tied and HEAD not in of.weights else HEAD
        head = self._packed([name.removesuffix(".weight")], after_head)
        sizes = [whole(rows) * PANEL_BYTES[kind] for _, rows in shapes]
        tasks = [-(-columns // COLUMNS) for columns, _ in shapes]
        tasks[2], sizes[2] = inner // GROUP, GATED * sizes[2]
        addresses = [_begins(threads, *each) for row in panels for each in zip(row, tasks, sizes)]
        addresses.append(_begins(threads, head, -(-of.vocab_size // COLUMNS), whole(of.width) * PANEL_BYTES[kind]))
        begins = np.array([*addresses, addresses[0]], np.int64).T.copy()
        self.held = Held(self._embedding(), panels, head, begins, norms, head_norms, state_norm, after, after_head)

    def _embedding(self) -> npt.NDArray[Any]:
        """Return the embedding as stored, or in the dtype of this model's tokens."""
        tensor = self._of.weights[EMBEDDING]
        if tensor.dtype == "BF16":
            # Copy on write, because Numba has a separate type for read-only arrays.
            shown: npt.NDArray[Any] = np.memmap(tensor.file, np.uint8, "c", tensor.begin, (tensor.size,))
            if tensor.begin % 2:
                shown = np.array(shown)
            return _finite(tensor, np.asarray(shown).view(np.uint16)).reshape(tensor.shape)
        values = floats(tensor)
        return values if self._kind == FLOATS else words(values)

    def _vector(self, name: str) -> Floats:
        return floats(self._of.weights[name])

    def _packed(self, names: list[str], after: Floats) -> int:
        """Pack the panels of some matrices, one after another, or of two alternating; return their address. Write the
        factors and biases of their sums into `after`."""
        parts = [self._part(name) for name in names]
        if len(parts) == 2:  # gates and ups
            matrix, scales, biases = (_in_turns(*pair) for pair in zip(*parts))
        else:
            matrix, scales, biases = (np.concatenate(each) for each in zip(*parts))
        count = after.shape[1]  # a head may have more rows than there are tokens to draft
        after[0], after[1] = scales[:count], biases[:count]
        made = panels(matrix[:count], self._kind)
        here = self._memory[self._taken : self._taken + made.nbytes]
        here.view(made.dtype).reshape(made.shape)[:] = made
        self._taken += made.nbytes
        return int(here.ctypes.data)

    def _part(self, name: str) -> tuple[npt.NDArray[Any], Floats, Floats]:
        """Return a matrix in this kind's numbers, and its rows' scales and biases."""
        tensor, count = self._of.weights[f"{name}.weight"], self._of.weights[f"{name}.weight"].shape[0]
        bias = self._vector(f"{name}.bias") if f"{name}.bias" in self._of.weights else np.zeros(count, np.float32)
        ones = np.ones(count, np.float32)
        if self._kind == FLOATS:
            return floats(tensor), ones, bias
        if self._kind != BYTES:
            if tensor.dtype != "BF16":
                return words(floats(tensor)), ones, bias
            raw = np.fromfile(tensor.file, np.uint16, tensor.size // 2, offset=tensor.begin)
            return _finite(tensor, raw).reshape(tensor.shape), ones, bias
        return *small(tensor), bias


def small(tensor: Stored) -> tuple[npt.NDArray[np.uint8], Floats]:
    """Return a matrix's numbers as bytes, 128 added, and a factor for each row. Few rows are in float32 at a time."""
    count, width = tensor.shape
    made, scales, some = np.empty((count, width), np.uint8), np.empty(count, np.float32), max(1, CHECKED // width)
    for first in range(0, count, some):
        rows = slice(first, min(first + some, count))
        values = floats(tensor.rows(rows.start, rows.stop))
        scales[rows] = np.maximum(np.abs(values).max(axis=1), np.float32(1e-12)) / np.float32(127)
        made[rows] = np.rint(values / scales[rows, None]) + 128
    return made, scales


def panels(matrix: npt.NDArray[Any], kind: int) -> npt.NDArray[Any]:
    """Return a matrix in this kind's numbers as a view [panels, steps, COLUMNS]; a copy of it is what tiles read."""
    count, width = matrix.shape
    padded: npt.NDArray[Any] = np.zeros((whole(count), whole(width)), matrix.dtype)
    if kind == BYTES:
        padded[:] = 128
    padded[:count, :width] = matrix
    step = {PAIRS: np.uint32, BYTES: np.uint32, AMX: np.uint32}.get(kind, matrix.dtype)
    return padded.view(step).reshape(len(padded) // COLUMNS, COLUMNS, -1).transpose(0, 2, 1)


def _begins(threads: int, address: int, tasks: int, size: int) -> list[int]:
    """Return the addresses of a product's first task of each thread. A task reads `size` bytes."""
    return [int(address) + first_of(thread, threads, tasks) * size for thread in range(threads)]


def _in_turns(one: npt.NDArray[Any], two: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return 32 rows of the first, 32 of the second, and so on. Each matrix is padded with a neutral value to a
    multiple of `GROUP` rows."""
    count = whole(len(one))
    both = np.full((2, count, *one.shape[1:]), 128 if one.dtype == np.uint8 else 0, one.dtype)
    both[0, : len(one)], both[1, : len(two)] = one, two
    turns: npt.NDArray[Any] = both.reshape(2, -1, COLUMNS, *one.shape[1:]).swapaxes(0, 1)
    return turns.reshape(2 * count, *one.shape[1:])


def floats(tensor: Stored) -> Floats:
    if tensor.scales is not None:
        scales = floats(tensor.scales)
        if np.abs(scales).max(initial=0) > MOST_SCALE:
            raise SettingError(f"{tensor.file}: {tensor.scales.name} has a number beyond {MOST_SCALE:g}; copy it again")
        raw = np.fromfile(tensor.file, np.int8, tensor.size, offset=tensor.begin).reshape(tensor.shape)
        found: Floats = raw * scales
        return found
    bits = _EXPONENTS[tensor.dtype].dtype
    raw = _finite(tensor, np.fromfile(tensor.file, bits, tensor.size // bits.itemsize, offset=tensor.begin))
    if tensor.dtype == "BF16":
        values = (raw.astype(np.uint32) << 16).view(np.float32)
    else:
        values = raw.view({"F16": np.float16, "F32": np.float32}[tensor.dtype]).astype(np.float32)
    return values.reshape(tensor.shape)


def _finite(tensor: Stored, raw: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the bits of a tensor's numbers. Raise SettingError if one is NaN or infinite: its exponent is all ones."""
    exponent = _EXPONENTS[tensor.dtype]
    for first in range(0, len(raw), CHECKED):
        if ((raw[first : first + CHECKED] & exponent) == exponent).any():
            raise SettingError(
                f"{tensor.file}: {tensor.name} has a number that is NaN or infinite, allowed: finite numbers; copy it "
                "again"
            )
    return raw


def words(values: Floats) -> Words:
    """Return the bits of the nearest bfloat16; of two equally near ones, the even one."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
