"""Reads the headers of safetensors files: names, shapes and types of tensors, and whether the files are complete.

It reads no tensor and imports no torch, so the launcher learns within a second what a load would find out much later.
safetensors' own reader does not give a tensor's offset in its file.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from covey.contracts.errors import SettingError, UnsupportedModel
from covey.text.model_folder import has_file, read_object

MOST_HEADER = 100_000_000  # bytes, safetensors' own limit
LFS = b"version https://git-lfs"  # the start of a file that git has not fetched yet
SCALES = "_scale"  # suffix to the name of an int8 matrix: one number per row, as in the format `compressed-tensors`
PLAIN = frozenset({"F64", "F32", "F16", "BF16"})  # types of weights that are not quantised
_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4}  # per number


@dataclass(frozen=True, slots=True)
class Stored:
    """The place of one tensor in a file."""

    name: str
    file: Path
    dtype: str  # as safetensors names it: F32, BF16, I8, ...
    shape: tuple[int, ...]
    size: int  # in bytes
    begin: int  # offset of its bytes in the file
    scales: Stored | None = None  # of an int8 matrix: a factor for each row

    def rows(self, first: int, end: int) -> Stored:
        """Return the place of some rows."""
        each = self.size // self.shape[0]
        shape, begin = (end - first, *self.shape[1:]), self.begin + first * each
        scales = None if self.scales is None else self.scales.rows(first, end)
        return replace(self, shape=shape, size=(end - first) * each, begin=begin, scales=scales)


def tensors(files: Iterable[Path]) -> dict[str, Stored]:
    """Return the tensors of several files by name. Raises SettingError if a file is not complete."""
    return {name: tensor for path in files for name, tensor in _header(path)}


def scaled(found: dict[str, Stored]) -> dict[str, Stored]:
    """Return the same tensors, each int8 matrix joined with its scales. Scales of another form stay separate."""
    whole = dict(found)
    for name, tensor in found.items():
        scales = found.get(f"{name}{SCALES}")
        matrix = tensor.dtype == "I8" and len(tensor.shape) == 2 and tensor.size == math.prod(tensor.shape)
        if matrix and scales and (scales.dtype, scales.shape) == ("F32", (tensor.shape[0], 1)):
            whole[name] = replace(tensor, scales=whole.pop(scales.name))
    return whole


def _header(path: Path) -> list[tuple[str, Stored]]:
    has_file(path)
    try:
        with path.open("rb") as file:
            if file.read(len(LFS)) == LFS:
                raise SettingError(f"{path} is a pointer of Git LFS, not the weights: run git lfs pull in its folder")
            file.seek(0)
            (length,) = struct.unpack("<Q", file.read(8))
            content: dict[str, Any] = json.loads(file.read(length) if length <= MOST_HEADER else "")
            content.pop("__metadata__", None)
            found = [(name, _tensor(name, path, each, 8 + length)) for name, each in content.items()]
    except (
        OSError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        OverflowError,  # JSON can write numbers that int() refuses
        struct.error,
        RecursionError,
    ) as error:
        raise SettingError(f"{path} cannot be read as safetensors: copy it again") from error
    whole, there = max((8 + length, *(each.begin + each.size for _, each in found))), path.stat().st_size
    if there != whole:
        raise SettingError(f"{path} has {there} bytes of {whole}: copy it again")
    _check_places(8 + length, [tensor for _, tensor in found])
    return found


def _tensor(name: str, path: Path, written: dict[str, Any], first: int) -> Stored:
    begin, end = map(int, written["data_offsets"])
    if not 0 <= begin <= end:
        raise ValueError("the bytes of a tensor end before they begin")
    shape = tuple(map(int, written["shape"]))
    if min(shape, default=0) < 0:
        raise ValueError("a tensor has a negative size")
    return Stored(name, path, str(written["dtype"]), shape, end - begin, first + begin)


def _check_places(first: int, found: list[Stored]) -> None:
    """Raise SettingError for tensors that overlap, leave a gap, or have too many or too few bytes for their shape. The
    bytes of all tensors must follow one another from `first` on."""
    for tensor in sorted(found, key=lambda each: (each.begin, each.size)):
        if tensor.begin != first:
            raise SettingError(
                f"{tensor.file}: {tensor.name} begins at byte {tensor.begin}, allowed: {first}, where the one before "
                "it ends; copy it again"
            )
        due = math.prod(tensor.shape) * _BYTES.get(tensor.dtype, 0)
        if tensor.dtype in _BYTES and tensor.size != due:
            raise SettingError(
                f"{tensor.file}: {tensor.name} has {tensor.size} bytes, allowed: {due} for {tensor.dtype} "
                f"{list(tensor.shape)}; copy it again"
            )
        first += tensor.size


def check(folder: Path, found: dict[str, Stored]) -> None:
    """Raise UnsupportedModel for quantised weights."""
    for name, tensor in found.items():
        if name.endswith(".weight") and tensor.dtype not in PLAIN:
            raise UnsupportedModel(
                f"{folder}: weights of type {tensor.dtype} are not supported: {name} is quantised, and config.json "
                "does not say how; serve the model that it was made from"
            )


def check_index(index: Path, found: dict[str, Stored]) -> None:
    """Raise SettingError if the shards lack tensors that their index lists."""
    if not has_file(index):
        return
    missing = sorted(set(read_object(index)["weight_map"]) - found.keys())
    if missing:
        raise SettingError(
            f"{index.parent}: the weights lack {missing[0]} and {len(missing) - 1} more of {index.name}; "
            "copy them whole"
        )
