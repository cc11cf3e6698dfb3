"""Rows of logits where they are: numpy's arrays on the host, whatever computed them, and PyTorch's tensors on a GPU.

Operators, indices and sums say the same of both; what they say differently is here, so that all of sampling is written
once and a process that computes nothing with PyTorch does not import it. Values are float32 or float64.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Logits: TypeAlias = Any  # an array or a tensor
FEW = 32  # of a row's largest values; as many looks for the largest one cost less than an order


def plain(logits: Logits) -> Logits:
    """Return the values in the form that is computed with: an array where they are on the host."""
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
    """Return the array where `like` is, and of its kind."""
    if isinstance(like, np.ndarray):
        return array
    import torch

    return torch.from_numpy(array).to(like.device)


def select(values: Any, rows: npt.NDArray[np.int64]) -> Any:
    """Return the given rows, each once and in ascending order."""
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
    """Return room for a 32-bit word per value."""
    if isinstance(values, np.ndarray):
        return np.empty(values.shape, np.int32)
    import torch

    return values.new_empty(values.shape, dtype=torch.int32)


def exp(values: Any) -> Any:
    return np.exp(values) if isinstance(values, np.ndarray) else values.exp()


def log_softmax(values: Any) -> Any:
    """Return the log-softmax along each row; NaN in a row that has no finite value, or another one beside those."""
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
    """Return the places of the `width` largest values of each row and the values, descending, the first of equal ones
    first. Once nothing is above -inf it is always the same place."""
    left, every = values.copy(), np.arange(len(values))
    places, found = np.empty((len(values), width), np.int64), np.empty((len(values), width), values.dtype)
    for rank in range(width):
        places[:, rank] = at = left.argmax(axis=1)
        found[:, rank] = left[every, at]
        left[every, at] = -np.inf
    return places, found
