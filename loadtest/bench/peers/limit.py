"""Measures what the machine allows a pass at this moment: `python -m loadtest.bench.peers.limit`, asked over a pipe.

Plain reading by all threads says how soon the weights can have been seen once; the pass's products alone, back to back,
how soon they can be multiplied by. A process of its own: a thread that computes here slows nobody's passes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F

from covey.contracts.types import JsonDict
from covey.models.loading import choose_device, choose_dtype, read_config
from loadtest.bench.peers.scripts.answering import answer

READ_BYTES = 256 << 20  # more than a cache holds
READS, REPEATS = 3, 7
ROWS = 16  # the number that weights in oneDNN's order are made for; it serves all others well (measured)


class Limit:
    """Owns random weights of a model's shapes, in the form in which products are fastest here."""

    def load(self, target: str, dtype: str) -> JsonDict:
        """Make the weights. All cores read them; of one core and all of them those count that multiply faster, since
        small products do not repay waiting for each other."""
        cores = os.cpu_count() or 1
        self._threads = sorted({1, cores})  # all at last: the next reading finds them
        torch.set_num_threads(cores)
        self._dtype = choose_dtype(dtype, choose_device("cpu"))
        shapes = _shapes(Path(target))
        self._products = [
            (width, _product((torch.randn(count, width) / width**0.5).to(self._dtype))) for width, count in shapes
        ]
        self._memory = torch.ones(READ_BYTES // 4)
        return {"weight_bytes": self._dtype.itemsize * sum(width * count for width, count in shapes)}

    @torch.inference_mode()
    def measure(self, rows: list[int]) -> JsonDict:
        """Return bytes a second, and milliseconds of all products by rows."""
        reading = min(_seconds(self._memory.sum) for _ in range(READS))
        return {
            "bytes_per_s": READ_BYTES / reading,
            "products_ms": {
                str(each): min(self._multiplied(each, threads) for threads in self._threads) for each in rows
            },
        }

    def _multiplied(self, rows: int, threads: int) -> float:
        """Return the milliseconds of all products, each of which reads weights of its own, as in a pass."""
        torch.set_num_threads(threads)
        inputs = {width: torch.randn(rows, width).to(self._dtype) for width, _ in self._products}

        def all_of_them() -> None:
            for width, product in self._products:
                product(inputs[width])

        all_of_them()  # the first of a kind compiles what it needs
        return 1000 * median(_seconds(all_of_them) for _ in range(REPEATS))


def _product(weight: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the product as it is fastest here: in bfloat16 by weights in oneDNN's own order."""
    if weight.dtype != torch.bfloat16:
        return lambda x: F.linear(x, weight)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)
    return lambda x: torch.ops.mkldnn._linear_pointwise.default(x, packed, None, "none", [], "")


def _shapes(folder: Path) -> list[tuple[int, int]]:
    """Return the widths in and out of a pass's products."""
    config = read_config(folder)
    hidden, wide = config.hidden_size, config.intermediate_size
    dim = getattr(config, "head_dim", None) or hidden // config.num_attention_heads
    heads, keys = config.num_attention_heads, config.num_key_value_heads
    layer = [(hidden, (heads + 2 * keys) * dim), (heads * dim, hidden), (hidden, 2 * wide), (wide, hidden)]
    return [*layer * config.num_hidden_layers, (hidden, config.vocab_size)]


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    limit = Limit()
    answer({"load": limit.load, "measure": limit.measure})
