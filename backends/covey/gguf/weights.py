"""Writes safetensors: a header of names and places, then the numbers. One chunk of numbers is in memory at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from covey.gguf.file import GgufFile
from covey.gguf.numbers import BYTES, Weight, chunks, encoded

MOST_BYTES = 4 << 30  # of a file of weights
SINGLE = "model.safetensors"


def write(folder: Path, file: GgufFile, weights: Sequence[Weight], dtype: str) -> None:
    """Write all weights in type `dtype`, to several files with an index if they are large."""
    shards = list(_shards(weights, BYTES[dtype]))
    if len(shards) == 1:
        _write_file(folder / SINGLE, file, shards[0], dtype)
        return
    places: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        _write_file(folder / name, file, shard, dtype)
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


def _write_file(path: Path, file: GgufFile, weights: Sequence[Weight], dtype: str) -> None:
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
            for numbers in chunks(file, weight):
                out.write(encoded(numbers, dtype).tobytes())
