"""Functions over rows of logits: NumPy arrays on the host, or PyTorch tensors on a GPU.

Operators, indices and sums work alike for both. The other operations are here, so sampling is written once, and a
process without PyTorch models does not import PyTorch. Values are float32 or float64.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Logits: TypeAlias = Any  # an array or a tensor
FEW = 32  # up to this many largest values, repeated argmax is faster than sorting


def plain(logits: Logits) -> Logits:
    """Return the values in the form to compute with: an array if they are on the host."""
    if isinstance(logits, np.ndarray):
        return np.ascontiguousarray(logits)
    if logits.dtype.itemsize < 4:
        logits = logits.float()
    return logits.numpy() if logits.device.type == "cpu" else logits.contiguous()


def host(values: Any) -> npt.NDArray[Any]:
    """Return the values as an array."""
    found: npt.NDArray[Any] = values if isinstance(values, np.ndarray) else values.cpu().numpy()
    return found


def beside(array: npt.NDArray[Any], like: Logits) -> Any:
    """Return the array on the device of `like`, and as its kind."""
    if isinstance(like, np.ndarray):
        return array
    import torch

    return torch.from_numpy(array).to(like.device)


def select(values: Any, rows: npt.NDArray[np.int64]) -> Any:
    """Return the given rows, which must be unique and ascending."""
    return values if len(rows) == len(values) else values[beside(rows, values)]


def copied(values: Any) -> Any:
    return values.copy() if isinstance(values, np.ndarray) else values.clone()


def single(values: Any) -> Any:
    return values.astype(np.float32) if isinstance(values, np.ndarray) else values.float()


def double(values: Any) -> Any:
    return values.astype(np.float64) if isinstance(values, np.ndarray) else values.double()


def of_type(values: Any, like: Any) -> Any:
    return values.astype(like.dtype) if isinstance(values, np.ndarray) else values.to(like.dtype)


def words_like(values: Any) -> Any:
    """Return an uninitialised array of one 32-bit word per value."""
    if isinstance(values, np.ndarray):
        return np.empty(values.shape, np.int32)
    import torch

    return values.new_empty(values.shape, dtype=torch.int32)


def exp(values: Any) -> Any:
    return np.exp(values) if isinstance(values, np.ndarray) else values.exp()


def log_softmax(values: Any) -> Any:
    """Return the log-softmax along each row; NaN in a row with NaN, +inf, or only -inf."""
    if not isinstance(values, np.ndarray):
        return values.log_softmax(1)
    with np.errstate(invalid="ignore"):
        shifted = values - values.max(axis=1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def numbers(count: int, like: Any) -> Any:
    return beside(np.arange(count), like)


def largest(values: Any, width: int) -> npt.NDArray[Any]:
    """Return the `width` largest values of each row, descending."""
    if not isinstance(values, np.ndarray):
        return host(values.topk(width, dim=1).values)
    if width <= FEW:
        return largest_of(values, width)[1]
    if width < values.shape[1]:
        values = np.partition(values, values.shape[1] - width, axis=1)[:, -width:]
    found: npt.NDArray[Any] = np.sort(values, axis=1)[:, ::-1]
    return found


def largest_of(values: npt.NDArray[Any], width: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """Return the places of the `width` largest values of each row, and the values, descending; equal ones in their
    order. When only -inf is left, the same place repeats."""
    left, every = values.copy(), np.arange(len(values))
    places, found = np.empty((len(values), width), np.int64), np.empty((len(values), width), values.dtype)
    for rank in range(width):
        places[:, rank] = at = left.argmax(axis=1)
        found[:, rank] = left[every, at]
        left[every, at] = -np.inf
    return places, found
