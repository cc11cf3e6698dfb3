"""A Hugging Face folder from a GGUF file."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from covey.contracts.errors import SettingError
from covey.gguf import architecture, file, numbers, tokenizer, weights
from covey.gguf.file import Fields, GgufFile
from covey.process.private import whole_folder
from covey.text.model_folder import SAMPLING

TYPES = {numbers.BFLOAT16: "bfloat16", numbers.FLOAT16: "float16", numbers.FLOAT32: "float32"}


SAMPLING_FIELDS = ("temp", "top_p", "top_k", "min_p", "penalty_repeat")  # llama.cpp's names of SAMPLING


def write(path: Path, folder: Path, card: str = "", sampling: Mapping[str, float] | None = None) -> None:
    """Write the folder with the model of a GGUF file, and its README.md if there is a `card`. `sampling` replaces what
    the file recommends. The folder is complete or not there at all. Raises SettingError, in one line, if the file is
    broken or holds what is not supported."""
    if folder.exists():
        raise SettingError(f"{folder}: is there already; name a new folder")
    try:
        with file.opened(path) as data:
            read = file.read(data)
            folder.parent.mkdir(parents=True, exist_ok=True)
            with whole_folder(folder) as building:
                _fill(building, read, sampling)
                if card:
                    (building / "README.md").write_text(card, encoding="utf-8")
    except SettingError as error:
        raise type(error)(f"{path}: {error}") from None
    except OSError as error:
        raise SettingError(f"{folder}: cannot be written: {error.strerror}") from error


def _fill(folder: Path, read: GgufFile, sampling: Mapping[str, float] | None) -> None:
    """Write all files. The weights come last, so that a refusal takes little time."""
    shape = architecture.read(read)
    found = architecture.weights(read, shape)
    vocabulary = tokenizer.read(read.fields, shape.vocabulary)
    words, special = tokenizer.build(read.fields, vocabulary), tokenizer.special_ids(vocabulary)
    dtype = numbers.stored_type(read, found)
    _write_json(folder / "config.json", architecture.configuration(read, shape, TYPES[dtype]) | special)
    recommended = _recommended(read.fields) if sampling is None else sampling
    _write_json(folder / "generation_config.json", special | dict(recommended))
    words_said = tokenizer.configuration(read.fields, vocabulary, shape.context)
    _write_json(folder / "tokenizer_config.json", words_said)
    words.save(str(folder / "tokenizer.json"))
    weights.write(folder, read, found, dtype)


def _recommended(fields: Fields) -> dict[str, float]:
    """Return how the model's makers would have tokens drawn, as far as the file says it."""
    found: dict[str, float] = {}
    for name, its in zip(SAMPLING, SAMPLING_FIELDS):
        field = f"general.sampling.{its}"
        if field in fields.names():
            with contextlib.suppress(SettingError):  # it only recommends
                found[name] = fields.integer(field) if name == "top_k" else fields.number(field)
    return found


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
