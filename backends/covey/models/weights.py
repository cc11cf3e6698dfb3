"""A model's weights from safetensors files into a device's memory, through two pinned buffers: while one's contents
travel on a stream of their own, the other is filled from the next place in the file.

transformers builds the module around tensors that hold nothing yet, so that names, shapes, ties and what is missing
are judged by the same code as ever; then the files' bytes go straight to where the module will read them, and the whole
model is never in host memory. Knows no families: where transformers computes a weight from stored ones, it says no.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open

from covey.models.stored import Stored, tensors

STAGING_BYTES = 32 << 20  # the size of a buffer: a few milliseconds of bus, long beside what starting a copy takes
_MARK = 32  # elements that tell one empty tensor from another

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}

Build = Callable[[dict[str, torch.Tensor]], tuple[torch.nn.Module, Mapping[str, Any]]]
"""Makes a module of checkpoint tensors; returns it with the report that names its missing keys."""


def load(
    files: Sequence[Path], dtype: torch.dtype, device: torch.device, build: Build
) -> tuple[torch.nn.Module, Mapping[str, Any]] | None:
    """Return the module that `build` makes of the files' weights, these on `device`, and the report. Work on the
    current stream waits for them; the host does not. None where what the module needs is not in the files as it is, and
    a module without weights where the report says that some are missing."""
    for path in files:
        with safe_open(path, framework="pt"):
            pass  # refuses what is damaged
    stored = tensors(files)
    if any(at.dtype not in _DTYPES for at in stored.values()):
        return None
    types = {key: _DTYPES[at.dtype] for key, at in stored.items()}
    empty = {
        key: _empty(at.shape, dtype if types[key].is_floating_point else types[key], index)
        for index, (key, at) in enumerate(stored.items())
    }
    module, report = build(dict(empty))
    if report.get("missing_keys"):
        return module, report
    keys = {tensor.data_ptr(): key for key, tensor in empty.items()}
    places: dict[str, torch.Tensor] = {}  # by object: a tied parameter is one, and is filled once
    persistent = {tensor.data_ptr() for tensor in module.state_dict().values()}
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.data_ptr() not in persistent:
            continue  # what the configuration determines, such as rotary frequencies: computed already
        key = keys.get(tensor.data_ptr())
        if key is None or key in places or not _untouched(tensor, empty[key]):
            return None
        places[key] = tensor
    staging = _Staging(device, STAGING_BYTES)
    for key in sorted(places, key=lambda key: (stored[key].file, stored[key].begin)):
        fresh = torch.empty(stored[key].shape, dtype=places[key].dtype, device=device)
        staging.send(stored[key], types[key], fresh.view(-1))
        places[key].data = fresh
    staging.finish()
    _tie(module)
    return module, report


def _empty(shape: tuple[int, ...], dtype: torch.dtype, index: int) -> torch.Tensor:
    """Return a tensor to be recognised by its address. Its pages are zeros until written, so it takes no memory.

    Its first elements differ from another's: transformers ties stored weights that are equal, and two that both are
    stored must not be taken for equal before they are read.
    """
    tensor = torch.from_numpy(np.zeros(int(np.prod(shape)) * dtype.itemsize, np.uint8)).view(dtype)
    mark = torch.tensor([index >> bit & 1 for bit in range(min(_MARK, len(tensor)))])
    tensor[: len(mark)] = mark.to(dtype)
    return tensor.view(shape)


def _untouched(tensor: torch.Tensor, empty: torch.Tensor) -> bool:
    """Return whether a tensor is the stored one as it is: not a part of it, not transposed, not of another type."""
    return tensor.shape == empty.shape and tensor.dtype == empty.dtype and tensor.stride() == empty.stride()


def _tie(module: Any) -> None:
    """Tie the head to the embedding where the configuration says so and their stored weights are equal."""
    head, embedding = module.get_output_embeddings(), module.get_input_embeddings()
    if head is None or not getattr(module.config, "tie_word_embeddings", False) or head.weight is embedding.weight:
        return
    if torch.equal(head.weight, embedding.weight):
        module.tie_weights()


class _Staging:
    """Two host buffers in turn. Off CUDA they are plain memory, and copies wait."""

    def __init__(self, device: torch.device, size: int) -> None:
        cuda = device.type == "cuda"
        self._device = device
        self._buffers = [torch.empty(size, dtype=torch.uint8, pin_memory=cuda) for _ in range(2)]
        self._stream = torch.cuda.Stream(device) if cuda else None
        self._sent = [torch.cuda.Event() for _ in range(2)] if cuda else []
        self._turn = 0

    def send(self, stored: Stored, dtype: torch.dtype, target: torch.Tensor) -> None:
        """Bring a stored tensor's elements, of this type, to `target`, of one dimension and perhaps another type."""
        if self._stream is not None:  # the allocator may have handed out what earlier work still uses
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
        width = dtype.itemsize
        step = len(self._buffers[0]) // width
        with stored.file.open("rb") as file:
            file.seek(stored.begin)
            for at in range(0, len(target), step):
                part = target[at : at + step]
                self._send(file, len(part) * width, dtype, part)

    def _send(self, file: BufferedReader, count: int, dtype: torch.dtype, target: torch.Tensor) -> None:
        self._turn = 1 - self._turn
        if self._sent:
            self._sent[self._turn].synchronize()  # what this buffer held has arrived
        held = self._buffers[self._turn][:count]
        if file.readinto(held.numpy().data) != count:
            raise OSError(f"{file.name} ends early")
        with self._context():
            piece = held.view(dtype)
            if dtype != target.dtype:  # converted there: a copy that converts would do it here, and wait
                piece = piece.to(self._device, non_blocking=True)
            target.copy_(piece, non_blocking=True)
            if self._stream is not None:
                self._sent[self._turn].record(self._stream)

    def finish(self) -> None:
        """Have later work on the current stream wait for all that was sent."""
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_event(self._stream.record_event())

    def _context(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)
