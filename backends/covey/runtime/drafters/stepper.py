"""The inner step of a neural drafter: one token, or a few, per row, over keys gathered once per call.

A pass over the paged model builds lanes, masks and gathers anew each time, which costs more than a small model
computes. Here a call's rows are brought together once, in `begin`: their context's keys in the columns up to `base`,
then one column for each token of the call, written as it is computed. `finish` writes those back to the pool.

    |<- context, rows of unequal length padded and masked ->|<- tokens of this call: pending ones, then proposals ->|
                                                            base

Keys carry their position already, so that columns need no order. Knows nothing of tags, trees or noise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from covey.runtime.attention import Shape
from covey.runtime.drafters.weights import LlamaWeights, read_llama
from covey.runtime.lanes import Lanes, Pass
from covey.runtime.model import PagedModel
from covey.runtime.noise import Index
from covey.runtime.product import Product
from covey.types import Ints

log = logging.getLogger("covey.drafter")

Map = Callable[[torch.Tensor], torch.Tensor]

NARROW = 2  # tokens of a step up to which float32 beats bfloat16 (measured: matrix-vector products)
NARROW_BYTES = 64 << 20  # a second copy of the weights, in float32, may take so much
TRUSTED = 0.1  # of the logits' size: what rounding may differ between the steppers
TABLE_BYTES = 16 << 20  # and so much a table of all tokens' queries, keys and values in the first layer


@dataclass(frozen=True, slots=True)
class Call:
    """What a call brings together. Row r's context lies in the first `context[r]` slots of blocks `tables[r]`; its
    token in column c of the call has position `positions[r, c]` and its key goes to slot `slots[r, c]`."""

    tables: Ints
    context: Ints
    positions: Ints
    slots: Index


class Stepper(Protocol):
    """Between `begin` and `finish` nobody else may use the pool's slots involved."""

    resident_bytes: int  # of its own copies of the weights

    def begin(self, call: Call, lanes: int) -> None:
        """Bring the rows together; most steps of the call will have `lanes` tokens in all."""
        ...

    def step(self, tokens: torch.Tensor, rows: int, visible: torch.Tensor | None = None) -> torch.Tensor:
        """Logits [tokens, vocab] of the next tokens of the first `rows` rows, as many for each. `visible` [rows,
        tokens per row, columns so far] says which of the call's columns each sees; None: all."""
        ...

    def catch_up(self, tokens: torch.Tensor, rows: int) -> torch.Tensor:
        """Logits [rows, vocab] of each row's last token; its tokens follow one another."""
        ...

    def finish(self) -> None:
        """Write the keys of the call's columns to their slots."""
        ...


@dataclass(frozen=True, slots=True)
class _Layer:
    qkv: Map
    out: Map
    gate_up: Map
    down: Map


@dataclass(frozen=True, slots=True)
class _Weights:
    """One copy of the weights. Norm weights, the square root of the width and attention's scale are inside the maps:
    h = x / |x| is all that is left of a norm. `first` has a row for each token: its embedding and, where there is room
    for such a table, its queries, keys and values in the first layer, which depend on nothing else."""

    dtype: torch.dtype
    first: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    layers: tuple[_Layer, ...]
    head: Map
    bytes: int


class FusedStepper:
    """For Llama itself: full attention, no biases, no norms of queries and keys."""

    def __init__(self, model: PagedModel, weights: LlamaWeights) -> None:
        shape = model._shape
        self._shape = shape
        self._block_size, self._blocks = model.block_size, model.blocks + 1
        self._pools = [pool.view(-1, shape.head_dim) for pool in model._pools]
        self._width = weights.embedding.shape[1]
        self._floor = weights.eps * self._width
        on_cpu = model._device.type == "cpu"
        self._wide = self._narrow = _prepared(weights, shape, model._dtype, on_cpu and model._dtype == torch.bfloat16)
        if on_cpu and model._dtype == torch.bfloat16 and 4 * weights.count <= NARROW_BYTES:
            self._narrow = _prepared(weights, shape, torch.float32, True)
        copies = {id(used): used.bytes for used in (self._wide, self._narrow)}
        self.resident_bytes = sum(copies.values())
        self._heads = np.arange(2 * shape.kv_heads, dtype=np.int32).reshape(2, 1, shape.kv_heads, 1)

    def begin(self, call: Call, lanes: int) -> None:
        size, dim = self._block_size, self._shape.head_dim
        used = self._used = self._narrow if lanes <= NARROW else self._wide
        rows, columns = call.positions.shape
        self._base = base = int(call.context.max())
        blocks = -(-(base + columns) // size)
        tables = call.tables[:, :blocks]
        if tables.shape[1] < blocks:
            tables = np.pad(tables, ((0, 0), (0, blocks - tables.shape[1])))
        where = torch.from_numpy((tables[:, None] + self._heads * self._blocks).reshape(-1))
        self._kv: list[torch.Tensor] = []  # by layer, [keys and values, rows, kv_heads, columns, head_dim]
        for pool in self._pools:
            found = pool.view(-1, size * dim).index_select(0, where).view(2, rows, -1, blocks * size, dim)
            self._kv.append(found if found.dtype == used.dtype else found.to(used.dtype))
        self._mask: torch.Tensor | None = None
        if int(call.context.min()) != base:
            hidden = np.zeros((rows, base + columns), np.bool_)
            hidden[:, :base] = np.arange(base) >= call.context[:, None]
            mask = torch.zeros(hidden.shape, dtype=used.dtype).masked_fill_(torch.from_numpy(hidden), -torch.inf)
            self._mask = mask.view(rows, 1, 1, 1, -1)  # as scores are: by row, key head, query, its heads, column
        turn = torch.from_numpy(call.positions.reshape(-1))
        self._cos = used.cos.index_select(0, turn).view(rows, columns, 1, dim)
        self._sin = used.sin.index_select(0, turn).view(rows, columns, 1, dim)
        self._slots = call.slots
        self._done = 0

    def step(self, tokens: torch.Tensor, rows: int, visible: torch.Tensor | None = None) -> torch.Tensor:
        count = len(tokens) // rows
        mask = self._context(rows, count)
        if visible is not None:
            mask = self._own(visible, mask)
        return self._forward(tokens, rows, count, mask, False)

    def catch_up(self, tokens: torch.Tensor, rows: int) -> torch.Tensor:
        count = len(tokens) // rows
        mask = self._context(rows, count)
        if count > 1 and len(self._kv) > 1:
            mask = self._own(torch.ones(1, count, count, dtype=torch.bool).tril_(), mask)
        return self._forward(tokens, rows, count, mask, True)

    def finish(self) -> None:
        done, base, size = self._done, self._base, self._blocks * self._block_size
        slots = self._slots[:, None, :done] + self._heads * size
        where = torch.from_numpy(slots.reshape(-1))
        for pool, kv in zip(self._pools, self._kv):
            new = kv[..., base : base + done, :].reshape(len(where), -1)
            pool.index_copy_(0, where, new if new.dtype == pool.dtype else new.to(pool.dtype))

    def _forward(
        self, tokens: torch.Tensor, rows: int, count: int, mask: torch.Tensor | None, last_only: bool
    ) -> torch.Tensor:
        used, shape, width = self._used, self._shape, self._width
        heads, kv_heads, share, dim = shape.heads, shape.kv_heads, shape.share, shape.head_dim
        both, half = heads + kv_heads, dim // 2
        done = self._done
        self._done = done + count
        start, stop = self._base + done, self._base + done + count
        cos, sin = self._cos[:rows, done : done + count], self._sin[:rows, done : done + count]
        first = used.first.index_select(0, tokens)
        x = first[:, :width]
        for index, layer in enumerate(used.layers):
            qkv = first[:, width:] if index == 0 and first.shape[1] > width else layer.qkv(self._normed(x))
            qkv = qkv.view(rows, count, both + kv_heads, dim)
            qk = qkv[:, :, :both]
            qk = torch.addcmul(qk * cos, qk.roll(half, -1), sin)
            kv = self._kv[index] if rows == len(self._slots) else self._kv[index][:, :rows]
            kv[0, :, :, start:stop] = qk[:, :, heads:].transpose(1, 2)
            kv[1, :, :, start:stop] = qkv[:, :, both:].transpose(1, 2)
            query = qk[:, :, :heads]
            if last_only and count > 1 and index == len(used.layers) - 1:
                query, x, mask = query[:, -1:], x.view(rows, count, -1)[:, -1], self._context(rows, 0)
                count = 1
            if count == 1:
                query = query.reshape(rows * kv_heads, share, dim)
            else:
                query = query.reshape(rows, count, kv_heads, share, dim).transpose(1, 2)
                query = query.reshape(rows * kv_heads, count * share, dim)
            keys, values = kv.view(2, rows * kv_heads, -1, dim)[:, :, :stop].unbind(0)
            scores = torch.bmm(query, keys.transpose(1, 2))
            if mask is not None:
                scores.view(rows, kv_heads, count, share, stop).add_(mask)
            h = torch.bmm(torch.softmax(scores, -1), values)
            if count > 1:
                h = h.view(rows, kv_heads, count, share, dim).transpose(1, 2)
            x = x + layer.out(h.reshape(rows * count, heads * dim))
            gate, up = layer.gate_up(self._normed(x)).chunk(2, -1)
            x = x + layer.down(F.silu(gate) * up)
        return used.head(self._normed(x)).float()

    def _normed(self, x: torch.Tensor) -> torch.Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scaled: torch.Tensor = x * norm.square_().add_(self._floor).rsqrt_()
        return scaled

    def _context(self, rows: int, count: int) -> torch.Tensor | None:
        """What queries see of contexts of unequal length; up to the columns of the next `count` tokens."""
        return None if self._mask is None else self._mask[:rows, ..., : self._base + self._done + count]

    def _own(self, visible: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """The same with what they see of the call's columns."""
        rows, count, columns = visible.shape
        own = torch.zeros(rows, 1, count, 1, self._base + columns, dtype=self._used.dtype)
        own[..., self._base :].masked_fill_(~visible[:, None, :, None], -torch.inf)
        return own if mask is None else own + mask


def _prepared(weights: LlamaWeights, shape: Shape, dtype: torch.dtype, quick: bool) -> _Weights:
    """`quick`: in the forms that run fastest on a CPU, which may round a little more."""
    root = weights.embedding.shape[1] ** 0.5
    sizes: list[int] = []

    def linear(weight: torch.Tensor, norm: torch.Tensor | None = None, queries: float = 1.0) -> torch.Tensor:
        whole = weight.double()
        if norm is not None:
            whole = whole * (norm.double() * root)
        if queries != 1.0:
            whole = whole.clone()
            whole[: shape.heads * shape.head_dim] *= queries
        sizes.append(whole.numel() * dtype.itemsize)
        return whole.to(dtype)

    layers = []
    scale = shape.head_dim**-0.5
    for layer in weights.layers:
        layers.append(
            _Layer(
                Product(linear(layer.qkv, layer.before, scale)),
                Product(linear(layer.out)),
                Product(linear(layer.gate_up, layer.after)),
                Product(linear(layer.down)),
            )
        )
    embedding, cos, sin = (table.to(dtype) for table in (weights.embedding, weights.cos, weights.sin))
    first = embedding
    rows, more = weights.embedding.shape[0], weights.layers[0].qkv.shape[0]
    if rows * more * dtype.itemsize <= TABLE_BYTES:
        x = embedding.double()
        x = x / (x.square().sum(-1, keepdim=True) + weights.eps * x.shape[1]).sqrt()
        first = torch.cat(
            (embedding, (x @ linear(weights.layers[0].qkv, weights.layers[0].before, scale).double().t()).to(dtype)), -1
        )
    head: Map = Product(linear(weights.head, weights.norm))
    if quick and dtype == torch.float32:
        head = _bytes_head(weights.head.double() * (weights.norm.double() * root)) or head
    sizes += [table.numel() * table.element_size() for table in (first, cos, sin)]
    return _Weights(dtype, first, cos, sin, tuple(layers), head, sum(sizes))


def _bytes_head(weight: torch.Tensor) -> Map | None:
    """The product with a weight of one byte per number and a scale per row; None where that is not to be had."""
    scale = weight.abs().amax(1).clamp_min(1e-12) / 127
    small = (weight / scale[:, None]).round().to(torch.int8)
    factors = scale.bfloat16()

    def product(x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch._weight_int8pack_mm(x.bfloat16(), small, factors)
        return found

    trial = torch.randn(1, weight.shape[1], generator=torch.Generator().manual_seed(4)).to(weight.dtype)
    try:
        found = product(trial).double()
    except (AttributeError, RuntimeError):
        return None
    expected = trial @ weight.t()
    return product if (found - expected).norm() <= 0.03 * expected.norm() else None


class PagedStepper:
    """For every other model: each step is a pass over the paged model, which takes milliseconds, not microseconds."""

    def __init__(self, model: PagedModel) -> None:
        self._model = model
        self.resident_bytes = 0

    def begin(self, call: Call, lanes: int) -> None:  # noqa: ARG002  # the model needs no preparation
        self._call = call
        self._done = 0

    def step(self, tokens: torch.Tensor, rows: int, visible: torch.Tensor | None = None) -> torch.Tensor:
        count = len(tokens) // rows
        if visible is None:
            visible = torch.ones(rows, count, self._done + count, dtype=torch.bool)
        return self._forward(tokens, visible.numpy(), np.arange(len(tokens), dtype=np.int32))

    def catch_up(self, tokens: torch.Tensor, rows: int) -> torch.Tensor:
        count = len(tokens) // rows
        visible = np.tril(np.ones((rows, count, count), np.bool_))
        return self._forward(tokens, visible, np.arange(count - 1, len(tokens), count, dtype=np.int32))

    def finish(self) -> None:
        """Keys are where they belong."""

    def _forward(self, tokens: torch.Tensor, visible: npt.NDArray[np.bool_], out: Ints) -> torch.Tensor:
        rows, count, columns = visible.shape
        call, now = self._call, slice(self._done, self._done + count)
        self._done += count
        slots = call.slots[:rows].astype(np.int32)
        tails = [slots[row, :columns][visible[row, query]] for row in range(rows) for query in range(count)]
        sizes = np.asarray([len(tail) for tail in tails], np.int32)
        lanes = Lanes(
            np.arange(rows * count + 1, dtype=np.int32),
            np.repeat(call.context[:rows], count) + sizes,
            np.repeat(call.tables[:rows], count, 0),
            np.arange(rows * count, dtype=np.int32),
            np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32),
            np.concatenate(tails),
        )
        positions = call.positions[:rows, now].reshape(-1).astype(np.int32)
        work = Pass(tokens.numpy().astype(np.int32), positions, slots[:, now].reshape(-1), lanes, out)
        return self._model.forward(work)


def make_stepper(model: PagedModel, folder: Path) -> Stepper:
    """The fastest there is for the model in `folder`; uses the model's first slots."""
    paged = PagedStepper(model)
    try:
        fused = FusedStepper(model, read_llama(folder, model.max_positions))
    except KeyError as error:
        log.info("%s: each drafted token is a pass over the paged model: it is no plain Llama (%s)", folder, error)
        return paged
    expected, found = _trial(paged, model), _trial(fused, model)
    if (found - expected).norm() <= TRUSTED * expected.norm():
        return fused
    log.warning("%s: each drafted token is a pass over the paged model: the short step differs from it", folder)
    return paged


@torch.inference_mode()
def _trial(stepper: Stepper, model: PagedModel) -> torch.Tensor:
    """Logits of a few tokens that follow one another."""
    pending = min(6, model.blocks * model.block_size - 1, model.max_positions - 1)
    at = np.arange(pending + 1)[None]
    tables = np.arange(-(-(pending + 1) // model.block_size), dtype=np.int32)[None]
    stepper.begin(Call(tables, np.zeros(1, np.int32), at, at), 1)
    tokens = torch.arange(pending + 1) * 7919 % model.vocab_size
    logits = [stepper.catch_up(tokens[:-1], 1), stepper.step(tokens[-1:], 1)]
    stepper.finish()
    return torch.cat(logits)
