"""A compiled decoder that is called with plain arrays: tokens, the keys before each, and block tables.

Two rules give a token the same bits whatever else is in its pass and however its row's tokens are spread over passes:
every token is a subsequence of its own, for a kernel of another order of sums serves several queries at once; and a
pass has at least as many tokens as `least`, for fewer take other ways through the threads (and, in float32, through the
products). Those that are missing are dummies, whose keys go to a spare block. Whether the rules suffice on this machine
is for `model.py` to find out.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import InferRequest

from covey.models.openvino import BYTES
from covey.models.openvino.architecture import Architecture
from covey.models.openvino.graph import build
from covey.models.openvino.pool import KeyValuePool
from covey.types import NO_INTS, Ints

LEAST_FLOAT32 = 8  # rows: products of fewer are computed in another order
_PRECISIONS = {"bfloat16": "bf16", "float32": "f32", BYTES: "f32"}
_SIZES = 1024  # of an input, whose memory is kept
_GROUP = 32  # of activations that share a scale where they are multiplied in bytes
Floats2D = npt.NDArray[np.float32]


def rounded(count: int) -> int:
    """The next of a few numbers, at most a quarter above: the runtime keeps a megabyte for every number of tokens that
    a small model had in a pass, more for a large one."""
    step = 1 << max(0, (count - 1).bit_length() - 3)
    return -(-count // step) * step


class Decoder:
    """Owns one request; not safe to call from two threads at once. The pool's memory may grow meanwhile."""

    def __init__(
        self,
        model: Architecture,
        pool: KeyValuePool,
        *,
        dtype: str,
        threads: int,
        gaps: bool = False,
    ) -> None:
        """With `gaps` each call is told positions."""
        self.least = max(threads, LEAST_FLOAT32 if dtype == "float32" else 1)
        self._gaps, self._alone = gaps, threads == 1
        graph, self._weights = build(model, dtype, gaps=gaps)
        self._request = _compiled(graph, dtype, threads)
        for layer in range(model.layers):
            self._request.set_tensor(f"key_cache.{layer}", pool.tensors[2 * layer])
            self._request.set_tensor(f"value_cache.{layer}", pool.tensors[2 * layer + 1])
        self._spare = pool.spare[0]
        self._longest = np.zeros((), np.int32)
        self._request.set_tensor("longest", ov.Tensor(self._longest, shared_memory=True))
        self._inputs: dict[str, dict[int, tuple[Ints, ov.Tensor]]] = {}
        self._set: dict[str, int] = {}
        self._bounds = np.arange(257, dtype=np.int32)

    def infer(
        self,
        tokens: Ints,
        past: Ints,
        tables: Ints,
        begins: Ints,
        wanted: Ints | None = None,
        positions: Ints = NO_INTS,
    ) -> Floats2D:
        """Compute `tokens[i]` after the `past[i]` keys before it, the key at position p lying in block
        `tables[begins[i] + p // 32]`: the same for all tokens of a row, and long enough for the token's own key too.
        Returns the logits of the `wanted` tokens, by default of all, in memory that the next call writes over."""
        count = len(tokens)
        total = max(self.least, rounded(count))
        missing = total - count
        if total >= len(self._bounds):
            self._bounds = np.arange(2 * total, dtype=np.int32)
        bounds = self._array("bounds", total + 1)
        bounds[:] = self._bounds[: total + 1]
        self._fill("tokens", tokens, missing, 0)
        self._fill("past", past, missing, 0)
        if self._gaps:
            self._fill("positions", positions, missing, 0)
        self._fill("tables", tables, 1, self._spare)
        self._fill("begins", begins, missing + 1, len(tables))
        wanted = self._bounds[:count] if wanted is None else wanted
        size = len(wanted)
        self._fill("wanted", wanted, rounded(size) - size, 0)
        self._longest[...] = past.max(initial=0) + 1
        if self._alone:
            self._request.infer(share_outputs=True)  # in this thread
        else:
            self._request.start_async()
            self._request.wait()
        logits: Floats2D = self._request.get_output_tensor(0).data
        return logits[:size]

    def trim(self) -> None:
        """After a call: have what is not needed any more out of memory."""
        self._weights.trim()

    def _fill(self, name: str, values: Ints, more: int, filling: int) -> None:
        array = self._array(name, len(values) + more)
        array[: len(values)] = values
        array[len(values) :] = filling

    def _array(self, name: str, size: int) -> Ints:
        """The memory of an input of this size, which is then the request's: each size has one."""
        made = self._inputs.setdefault(name, {})
        found = made.get(size)
        if found is None:
            if len(made) > _SIZES:
                made.clear()
            array = np.zeros(size, np.int32)
            made[size] = found = array, ov.Tensor(array, shared_memory=True)
            self._set.pop(name, None)
        if self._set.get(name) != size:
            self._request.set_tensor(name, found[1])
            self._set[name] = size
        return found[0]


def _compiled(graph: ov.Model, dtype: str, threads: int) -> InferRequest:
    """No thread is bound to a processor: those of other processes would be bound to the same ones."""
    settings = {
        "INFERENCE_PRECISION_HINT": _PRECISIONS[dtype],
        "KV_CACHE_PRECISION": _PRECISIONS[dtype],
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": _GROUP if dtype == BYTES else 0,
        "ENABLE_CPU_PINNING": False,
        "ENABLE_HYPER_THREADING": True,
    }
    return ov.Core().compile_model(graph, "CPU", settings).create_infer_request()
