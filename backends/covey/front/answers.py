"""Turns an answer's chunks into values by field, and describes the public models for both protocols."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from covey.front.inference_request import VERSION
from covey_client.response import Chunk
from covey_client.wire import EARLY, INPUTS, MODEL, OUTPUT_BY_NAME, OUTPUTS, USAGE, Field

NAME, PLATFORM = "covey", "python"
EXTENSIONS = ("generate", "binary_tensor_data", "parameters")


def values(chunk: Chunk, names: Sequence[str]) -> dict[str, list[Any]]:
    """Return a list for each field, even for fields with one value. No names: all that the response has."""
    found, early = {}, not names and not chunk.finish_reason
    for name in names or (EARLY if early else OUTPUT_BY_NAME):
        field = OUTPUT_BY_NAME[name]
        value = getattr(chunk.usage if field.part == USAGE else chunk, field.attribute)
        if value or not (early and field.many) or name == "output_ids":
            found[name] = list(value) if field.many else [value]
    return found


def event(chunk: Chunk, model: str, names: Sequence[str]) -> dict[str, Any]:
    """Return one JSON object of `generate`. Fields with one value are plain, the others are lists."""
    plain = {name: found if OUTPUT_BY_NAME[name].many else found[0] for name, found in values(chunk, names).items()}
    return {"model_name": model, "model_version": VERSION, **plain}


def metadata(model: str) -> dict[str, Any]:
    def described(field: Field) -> dict[str, Any]:
        return {"name": field.name, "datatype": field.dtype, "shape": [-1 if field.many else 1]}

    return {
        "name": model,
        "versions": [VERSION],
        "platform": PLATFORM,
        "inputs": [described(field) for field in INPUTS],
        "outputs": [described(field) for field in OUTPUTS],
    }


def config(model: str) -> dict[str, Any]:
    def described(field: Field) -> dict[str, Any]:
        kind = "STRING" if field.dtype == "BYTES" else field.dtype
        return {"name": field.name, "data_type": f"TYPE_{kind}", "dims": [-1 if field.many else 1]}

    return {
        "name": model,
        "platform": "",
        "backend": PLATFORM,
        "max_batch_size": 0,
        "input": [described(field) | {"optional": True} for field in INPUTS],
        "output": [described(field) for field in OUTPUTS],
        "model_transaction_policy": {"decoupled": model == MODEL},
    }
