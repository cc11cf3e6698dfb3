"""A Hugging Face folder from a GGUF file."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from covey.contracts.errors import SettingError
from covey.gguf import architecture, file, numbers, tokenizer
from covey.gguf.file import Fields, GgufFile
from covey.gguf.numbers import BYTES, Weight, chunks, encoded
from covey.process.private import whole_folder
from covey.text.model_folder import SAMPLING

TYPES = {numbers.BFLOAT16: "bfloat16", numbers.FLOAT16: "float16", numbers.FLOAT32: "float32"}
SAMPLING_FIELDS = ("temp", "top_p", "top_k", "min_p", "penalty_repeat")  # llama.cpp's names of SAMPLING
MOST_BYTES = 4 << 30  # of a file of weights
SINGLE = "model.safetensors"


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
    _write_weights(folder, read, found, dtype)


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


def _write_weights(folder: Path, read: GgufFile, weights: Sequence[Weight], dtype: str) -> None:
    """Write all weights in type `dtype`, to several files with an index if they are large."""
    shards = list(_shards(weights, BYTES[dtype]))
    if len(shards) == 1:
        _write_file(folder / SINGLE, read, shards[0], dtype)
        return
    places: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        _write_file(folder / name, read, shard, dtype)
        places |= {weight.name: name for weight in shard}
    total = sum(weight.size for weight in weights) * BYTES[dtype]
    content = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / f"{SINGLE}.index.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _shards(weights: Sequence[Weight], each: int) -> Iterator[list[Weight]]:
    shard: list[Weight] = []
    held = 0
    for weight in weights:
        if shard and held + weight.size * each > MOST_BYTES:
            yield shard
            shard, held = [], 0
        shard.append(weight)
        held += weight.size * each
    yield shard


def _write_file(path: Path, read: GgufFile, weights: Sequence[Weight], dtype: str) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for weight in weights:
        begin, end = end, end + weight.size * BYTES[dtype]
        header[weight.name] = {"dtype": dtype, "shape": weight.tensor.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for weight in weights:
            for part in chunks(read, weight):
                out.write(encoded(part, dtype).tobytes())
