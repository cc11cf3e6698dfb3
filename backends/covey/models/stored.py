"""The contents of safetensors files by their headers: names, shapes and types of tensors, and whether the files are
whole.

Reads no tensor and imports no torch, so the launcher knows within a second what loading would find out after many.
safetensors' own reader does not say where in its file a tensor lies.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covey.contracts.errors import SettingError, UnsupportedModel
from covey.text.model_folder import read_object

MOST_HEADER = 100_000_000  # bytes, as safetensors itself has it
LFS = b"version https://git-lfs"  # how a file begins that git has not fetched yet
PLAIN = frozenset({"F64", "F32", "F16", "BF16"})  # types whose numbers are a weight's own
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight")


@dataclass(frozen=True, slots=True)
class Stored:
    """The place of one tensor in a file."""

    file: Path
    dtype: str  # as safetensors names it: F32, BF16, I8, ...
    shape: tuple[int, ...]
    size: int  # in bytes
    begin: int  # where they begin in the file


def tensors(files: Iterable[Path]) -> dict[str, Stored]:
    """Return the tensors of several files by their names; SettingError where a file is not whole."""
    return {name: tensor for path in files for name, tensor in _header(path)}


def _header(path: Path) -> list[tuple[str, Stored]]:
    try:
        with path.open("rb") as file:
            if file.read(len(LFS)) == LFS:
                raise SettingError(f"{path} is a pointer of Git LFS, not the weights: run git lfs pull in its folder")
            file.seek(0)
            (length,) = struct.unpack("<Q", file.read(8))
            content: dict[str, Any] = json.loads(file.read(length) if length <= MOST_HEADER else "")
            content.pop("__metadata__", None)
            found = [(name, _tensor(path, each, 8 + length)) for name, each in content.items()]
    except (
        OSError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        OverflowError,  # of a number that JSON can write and no integer is
        struct.error,
        RecursionError,
    ) as error:
        raise SettingError(f"{path} cannot be read as safetensors: copy it again") from error
    whole, there = max((8 + length, *(each.begin + each.size for _, each in found))), path.stat().st_size
    if there != whole:
        raise SettingError(f"{path} has {there} bytes of {whole}: copy it again")
    return found


def _tensor(path: Path, written: dict[str, Any], first: int) -> Stored:
    begin, end = map(int, written["data_offsets"])
    if not 0 <= begin <= end:
        raise ValueError("the bytes of a tensor end before they begin")
    return Stored(path, str(written["dtype"]), tuple(map(int, written["shape"])), end - begin, first + begin)


def check(folder: Path, found: dict[str, Stored], vocabulary: int) -> None:
    """Refuse weights that are not a plain model's with that `vocabulary` (0: not known)."""
    for name, tensor in found.items():
        if name.endswith(".weight") and tensor.dtype not in PLAIN:
            raise UnsupportedModel(
                f"{folder}: weights of type {tensor.dtype} are not supported: {name} is quantised, and config.json "
                "does not say how; serve the model that it was made from"
            )
        rows = tensor.shape[0] if tensor.shape else 1
        if name.endswith(_EMBEDDINGS) and vocabulary and rows != vocabulary:
            raise SettingError(
                f"{folder}: {name} has {rows} tokens, vocab_size of config.json is {vocabulary}: copy both "
                "from one model"
            )


def check_index(index: Path, found: dict[str, Stored]) -> None:
    """Refuse shards that lack what their index says they hold."""
    if not index.is_file():
        return
    missing = sorted(set(read_object(index)["weight_map"]) - found.keys())
    if missing:
        raise SettingError(
            f"{index.parent}: the weights lack {missing[0]} and {len(missing) - 1} more of {index.name}; "
            "copy them whole"
        )
