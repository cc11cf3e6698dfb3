"""Read a GGUF file's fields and the places of its tensors. The file may come from a stranger: the reader checks every
size before it takes memory for it."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType
from numpy.typing import NDArray

from covey.contracts.errors import SettingError, UnsupportedModel
from covey.text.model_folder import has_file

T = TypeVar("T")
MAGIC = b"GGUF"
KINDS = tuple(
    GGMLQuantizationType[name]
    for name in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
)
VERSIONS = (2, 3)
ALIGNMENT, MOST_ALIGNMENT = 32, 1 << 20
MOST_HEADER = 128 << 20  # bytes of all fields and of the list of tensors; a vocabulary of 262,144 tokens takes 16 MB
MOST_NAME, MOST_DIMENSIONS, MOST_LISTED = 65_535, 4, 65_536
MOST_SIZE = 1 << 31  # of one dimension
_NUMBERS = {
    GGUFValueType.UINT8: "<u1",
    GGUFValueType.INT8: "<i1",
    GGUFValueType.UINT16: "<u2",
    GGUFValueType.INT16: "<i2",
    GGUFValueType.UINT32: "<u4",
    GGUFValueType.INT32: "<i4",
    GGUFValueType.FLOAT32: "<f4",
    GGUFValueType.BOOL: "<u1",
    GGUFValueType.UINT64: "<u8",
    GGUFValueType.INT64: "<i8",
    GGUFValueType.FLOAT64: "<f8",
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the file. Its numbers are written row by row, in blocks that never cross a row."""

    name: str
    kind: GGMLQuantizationType
    shape: tuple[int, ...]  # rows before columns, as in Hugging Face's checkpoints
    start: int  # byte of the file where it begins
    size: int  # in bytes

    @property
    def rows(self) -> int:
        return self.shape[0] if len(self.shape) > 1 else 1


class Fields:
    """The key-value part of a file. Each method raises SettingError if the value is of another type."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def names(self) -> Iterator[str]:
        return iter(self._values)

    def integer(self, name: str, default: int | None = None) -> int:
        return self._typed(name, default, int, "a whole number")

    def number(self, name: str, default: float | None = None) -> float:
        """Return the decimal that a float32 was written from: 1e-05 rather than 9.999999747378752e-06."""
        found = float(str(np.float32(self._typed(name, default, float, "a number"))))
        if not math.isfinite(found):
            raise SettingError(f"field {name} is {found}, allowed: finite numbers")
        return found

    def text(self, name: str, default: str | None = None) -> str:
        return self._typed(name, default, str, "a text")

    def flag(self, name: str, default: bool | None = None) -> bool:
        return self._typed(name, default, bool, "true or false")

    def texts(self, name: str) -> list[str]:
        found: list[str] = self._typed(name, None, list, "a list of texts")
        return found

    def numbers(self, name: str) -> NDArray[Any]:
        return self._typed(name, None, np.ndarray, "a list of numbers")

    def _typed(self, name: str, default: T | None, kind: type[T], allowed: str) -> T:
        value = self._values.get(name, default)
        if value is None:
            raise SettingError(f"the file has no field {name}; fetch it again, or another file of the model")
        if type(value) is not kind:
            raise SettingError(f"field {name} is {str(value)[:40]!r}, allowed: {allowed}")
        return value


@dataclass(frozen=True, slots=True)
class GgufFile:
    """An open file whose fields and list of tensors were read and checked."""

    file: BinaryIO
    fields: Fields
    tensors: Mapping[str, Tensor]

    def raw(self, tensor: Tensor, first: int = 0, rows: int | None = None) -> NDArray[np.uint8]:
        """Return the bytes of some rows, all of them by default: one row of bytes for each row of numbers."""
        width = tensor.size // tensor.rows
        count = (tensor.rows if rows is None else rows) * width
        self.file.seek(tensor.start + first * width)
        data = self.file.read(count)
        if len(data) < count:
            raise SettingError("the file was cut short while it was read; try again")
        return np.frombuffer(data, np.uint8).reshape(-1, width)


def read(file: BinaryIO) -> GgufFile:
    """Return the fields and tensors of an open file. Raises SettingError if it is broken."""
    header = _Header(file, os.fstat(file.fileno()).st_size)
    if header.take(4) != MAGIC:
        raise SettingError("it does not begin with GGUF: no GGUF file; fetch it again")
    version = header.number("<I")
    if version not in VERSIONS:
        big = version & 0xFFFF == 0
        raise UnsupportedModel(
            f"{'a big-endian file' if big else f'version {version}'} is not supported: allowed: 2, 3"
        )
    tensors, fields = header.number("<Q"), header.number("<Q")
    if max(tensors, fields) > MOST_LISTED:
        raise SettingError(f"it says to have {fields} fields and {tensors} tensors, allowed: {MOST_LISTED} of each")
    values: dict[str, Any] = {}
    for _ in range(fields):
        name = header.text(MOST_NAME)
        if name in values:
            raise SettingError(f"it has two fields {name}; fetch it again")
        values[name] = header.value()
    parts = values.get("split.count", 1)
    if parts not in (0, 1):
        raise UnsupportedModel(f"one of {parts} parts is not supported: join them by llama-gguf-split --merge")
    listed = [header.tensor() for _ in range(tensors)]
    return GgufFile(file, Fields(values), _placed(listed, values.get("general.alignment", ALIGNMENT), header))


def opened(path: Path) -> BinaryIO:
    """Open a regular file for reading. Raises SettingError for everything else."""
    try:
        if not has_file(path):
            raise SettingError("no such file")
        return path.open("rb")
    except OSError as error:
        raise SettingError(f"cannot be read: {error.strerror}") from error


class _Header:
    """Reads the part before the tensors. Raises SettingError if a size there ends after the file or the limit."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self.size, self.at = file, size, 0

    def take(self, count: int) -> bytes:
        self.check(count)
        self.at += count
        data = self._file.read(count)
        if len(data) < count:
            raise SettingError("it was cut short while it was read; try again")
        return data

    def number(self, form: str) -> int:
        return int(struct.unpack(form, self.take(struct.calcsize(form)))[0])

    def text(self, most: int = MOST_HEADER) -> str:
        size = self.number("<Q")
        if size > most:
            raise SettingError(f"a text at byte {self.at - 8} has {size} bytes, allowed: {most}; fetch the file again")
        try:
            return self.take(size).decode()
        except UnicodeDecodeError:
            raise SettingError(f"a text that ends at byte {self.at} is not UTF-8; fetch the file again") from None

    def value(self) -> Any:
        kind = self._kind()
        if kind == GGUFValueType.STRING:
            return self.text()
        if kind == GGUFValueType.ARRAY:
            inner, count = self._kind(), self.number("<Q")
            if inner == GGUFValueType.ARRAY:
                raise UnsupportedModel("a field with lists in a list is not supported: fetch another file of the model")
            if inner == GGUFValueType.STRING:
                self.check(8 * count)
                return [self.text() for _ in range(count)]
            return self._numbers(inner, count)
        found = self._numbers(kind, 1)[0]
        return bool(found) if kind == GGUFValueType.BOOL else found.item()

    def tensor(self) -> tuple[str, int, tuple[int, ...], int]:
        """Return a tensor's name, kind, shape, and where it begins after the header."""
        name, dimensions = self.text(MOST_NAME), self.number("<I")
        if not 1 <= dimensions <= MOST_DIMENSIONS:
            raise SettingError(f"tensor {name} has {dimensions} dimensions, allowed: 1 to {MOST_DIMENSIONS}")
        shape = tuple(reversed([self.number("<Q") for _ in range(dimensions)]))
        return name, self.number("<I"), shape, self.number("<Q")

    def _kind(self) -> GGUFValueType:
        number = self.number("<I")
        try:
            return GGUFValueType(number)
        except ValueError:
            raise SettingError(f"a field before byte {self.at} is of type {number}, allowed: 0 to 12") from None

    def _numbers(self, kind: GGUFValueType, count: int) -> NDArray[Any]:
        dtype = np.dtype(_NUMBERS[kind])
        return np.frombuffer(self.take(count * dtype.itemsize), dtype)

    def check(self, count: int) -> None:
        """Raise SettingError if the next `count` bytes end after the file or after the largest header."""
        end = self.at + count
        if end > self.size:
            raise SettingError(f"it is cut short, or its sizes are wrong: {end} bytes wanted, it has {self.size}")
        if end > MOST_HEADER:
            raise SettingError(f"its fields take more than {MOST_HEADER} bytes; fetch another file of the model")


def _placed(
    listed: list[tuple[str, int, tuple[int, ...], int]], alignment: object, header: _Header
) -> dict[str, Tensor]:
    """Return the tensors by name. Raises SettingError if one is beyond the file's end or lies over another one."""
    if not isinstance(alignment, int) or not 1 <= alignment <= MOST_ALIGNMENT or alignment & (alignment - 1):
        raise SettingError(f"field general.alignment is {alignment!r}, allowed: powers of two up to {MOST_ALIGNMENT}")
    begin = -(-header.at // alignment) * alignment
    tensors: dict[str, Tensor] = {}
    for name, number, shape, offset in listed:
        if name in tensors:
            raise SettingError(f"it has two tensors {name}; fetch it again")
        kind = _tensor_kind(name, number)
        block, width = GGML_QUANT_SIZES[kind]
        if not all(1 <= size < MOST_SIZE for size in shape) or shape[-1] % block:
            raise SettingError(f"tensor {name} is {list(shape)}, allowed: rows of whole blocks of {block}")
        size = int(np.prod(shape, dtype=object)) // block * width
        if offset % alignment or begin + offset + size > header.size:
            raise SettingError(
                f"tensor {name} lies from byte {begin + offset} to {begin + offset + size}, and the file has "
                f"{header.size}: it is cut short or broken; fetch it again"
            )
        tensors[name] = Tensor(name, kind, shape, begin + offset, size)
    ordered = sorted(tensors.values(), key=lambda tensor: tensor.start)
    for before, after in pairwise(ordered):
        if before.start + before.size > after.start:
            raise SettingError(f"tensors {before.name} and {after.name} lie over each other; fetch the file again")
    return tensors


def _tensor_kind(name: str, number: int) -> GGMLQuantizationType:
    try:
        kind = GGMLQuantizationType(number)
    except ValueError:
        kind = None
    if kind not in KINDS:
        said = number if kind is None else kind.name
        known = ", ".join(each.name for each in KINDS)
        raise UnsupportedModel(f"tensor {name} of type {said} is not supported: fetch a file of {known}")
    return kind
