"""Linear maps as they run fastest here; knows nothing of models.

A CPU's product reads its weights once per call, so their order in memory matters most with few rows: in bfloat16
oneDNN's own order, made once, saves a third of the time. In float32 it makes a row's result the same bits however many
rows there are, where the library behind `linear` wants four rows at least: that is half the time of a single row of a
model of any size.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F

_GRAIN = 32768  # elements from which PyTorch splits an elementwise call between threads
_LANES = 64  # elements that its vectors divide
FEW = 16  # rows up to which every count has a product of its own
_ROWS = 16  # the row count that the order is made for; it serves all others well (measured)


def padded(count: int, granule: int) -> int:
    """Return the row count that a product of `count` rows is brought to, at most an eighth more: libraries compile a
    product for each count that they meet, which takes as long as dozens of calls."""
    step = max(1, (1 << count.bit_length()) // 16) if count > FEW else 1
    return -(-count // math.lcm(step, granule)) * math.lcm(step, granule)


def by_rows(apply: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Apply an elementwise function to pieces of rows, which are computed alike in any company. PyTorch splits large
    calls between threads at any element, and takes what is left at the end of a piece by another function, whose last
    bit may differ: so pieces are too small to be split, and end where vectors end."""
    width = x.shape[-1]
    step = max(1, (_GRAIN - 1) // width) if width % _LANES == 0 or not x.is_contiguous() else 1
    if x.numel() <= step * width or x.device.type != "cpu":
        return apply(x)
    return torch.cat([apply(piece) for piece in x.reshape(-1, width).split(step)]).view(x.shape)


class Product:
    """`x @ weight.T + bias`; keeps only the form of the weights that it multiplies by. Where these are one rank's
    part of a matrix, `after` brings the ranks' results together. `alike`: in a form under which rows are most likely
    to have the same results whatever their number, though a single one may take longer."""

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        after: Callable[[torch.Tensor], torch.Tensor] | None = None,
        *,
        alike: bool = False,
    ) -> None:
        self.width = weight.shape[1]
        self.count = weight.numel()
        self.bias = bias
        self._after = after
        self._weight: torch.Tensor = weight
        self._packed: torch.Tensor | None = _pack(weight, bias, alike)
        if self._packed is not None:
            self._weight = weight.new_empty(0)
        self._most = 0  # rows that are multiplied at once; 0: any number
        if alike and weight.device.type == "cpu":
            self._most = self._alike(weight.dtype, tuple(weight.shape))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        result = self.alone(x)
        return result if self._after is None else self._after(result)

    def alone(self, x: torch.Tensor) -> torch.Tensor:
        """Return this rank's product, without the others'."""
        if self._most and len(x) > self._most:
            return torch.cat([self._at_once(piece) for piece in x.split(self._most)])
        return self._at_once(x)

    def _at_once(self, x: torch.Tensor) -> torch.Tensor:
        if self._packed is None:
            return F.linear(x, self._weight, self.bias)
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(x, self._packed, self.bias, "none", [], "")
        return result

    def _alike(self, dtype: torch.dtype, shape: tuple[int, ...]) -> int:
        """Return how many rows to multiply at once, for a row to have the same result in each of several row counts: of
        some shapes oneDNN sums in another order where there are 33 to 255. It is a guess, made once for a shape, that
        saves models from being given up; `numerics` proves whether results are alike."""
        key = dtype, shape, self._packed is None, torch.get_num_threads()
        if key not in _MOST:
            rows = torch.randn(_COUNTS[-1], self.width, generator=torch.Generator().manual_seed(4)).to(dtype)
            alone = torch.cat([self._at_once(row) for row in rows.split(1)])
            _MOST[key] = next((most for most in _PIECES if self._agrees(rows, alone, most)), 0)
        return _MOST[key]

    def _agrees(self, rows: torch.Tensor, alone: torch.Tensor, most: int) -> bool:
        counts = [count for count in _COUNTS if count <= (most or _COUNTS[-1])]
        return all(
            torch.equal(self._at_once(rows[start : start + count]), alone[start : start + count])
            for count in counts
            for start in range(0, len(rows) - count + 1, max(count, 64))
        )


_COUNTS = (2, 3, 4, 5, 8, 16, 24, 32, 33, 48, 64, 96, 128, 192, 255, 256, 320, 512)
_PIECES = (0, 32, 16, 8)
_MOST: dict[object, int] = {}


def _pack(weight: torch.Tensor, bias: torch.Tensor | None, alike: bool) -> torch.Tensor | None:
    """Return the weights in oneDNN's order, or None where that is not to be had or of no use."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return None
    if weight.dtype != torch.bfloat16 and not (alike and weight.dtype == torch.float32):
        return None
    try:
        packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS)
        trial = torch.randn(20, weight.shape[1], generator=torch.Generator().manual_seed(3)).to(weight.dtype)
        result = torch.ops.mkldnn._linear_pointwise.default(trial, packed, bias, "none", [], "")
    except (AttributeError, RuntimeError):
        return None
    expected = F.linear(trial, weight, bias)
    rounding = 0.0 if weight.dtype == torch.bfloat16 else 1e-5
    return packed if bool((result - expected).norm() <= rounding * expected.norm()) else None
