"""The inner step of a neural drafter: one token, or a few, per row, over keys gathered once per call.

A pass over the paged model builds lanes, masks and gathers anew each time, which costs more than a small model
computes. Here a call's rows are brought together once, in `begin`: their context's keys in the columns up to `base`,
then one column for each token of the call, written as it is computed. `finish` writes those back to the pool.

    |<- context, rows of unequal length padded and masked ->|<- tokens of this call: pending ones, then proposals ->|
                                                            base

Keys carry their position already, so that columns need no order. Knows nothing of tags, trees or noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F

from covey.runtime.attention import Shape
from covey.runtime.drafters.weights import LlamaWeights, read_llama
from covey.runtime.model import PagedModel
from covey.types import Ints

Map = Callable[[torch.Tensor], torch.Tensor]

NARROW = 2  # tokens of a step up to which float32 beats bfloat16 (measured: matrix-vector products)
NARROW_BYTES = 64 << 20  # a second copy of the weights, in float32, may take so much


@dataclass(frozen=True, slots=True)
class Call:
    """What a call brings together. Row r's context lies in the first `context[r]` slots of blocks `tables[r]`; its
    token in column c of the call has position `positions[r, c]` and its key goes to slot `slots[r, c]`."""

    tables: Ints
    context: Ints
    positions: Ints
    slots: Ints


class Stepper(Protocol):
    """Between `begin` and `finish` nobody else may use the pool's slots involved."""

    resident_bytes: int  # weights, copies included, without the pool

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
    h = x / |x| is all that is left of a norm."""

    dtype: torch.dtype
    embedding: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    layers: tuple[_Layer, ...]
    head: Map
    bytes: int


class FusedStepper:
    """For Llama itself: full attention, no biases, no norms of queries and keys."""

    def __init__(self, model: PagedModel, weights: LlamaWeights) -> None:
        self._model = model
        self._shape = model._shape
        self._slots = (model.blocks + 1) * model.block_size
        self._pools = [pool.view(-1, self._shape.head_dim) for pool in model._pools]
        self._width = weights.embedding.shape[1]
        self._floor = weights.eps * self._width
        self._wide = _prepared(weights, self._shape, model._dtype)
        small = weights.embedding.numel() * 4 <= NARROW_BYTES and model._device.type == "cpu"
        half = model._dtype in (torch.bfloat16, torch.float16)
        self._narrow = _prepared(weights, self._shape, torch.float32) if small and half else self._wide
        copies = {id(used): used.bytes for used in (self._wide, self._narrow)}
        self.resident_bytes = sum(copies.values())

    def begin(self, call: Call, lanes: int) -> None:
        kv_heads, dim = self._shape.kv_heads, self._shape.head_dim
        size = self._model.block_size
        self._used = self._narrow if lanes <= NARROW else self._wide
        rows, columns = call.positions.shape
        self._base = base = int(call.context.max())
        blocks = -(-(base + columns) // size)
        tables = call.tables[:, :blocks]
        if tables.shape[1] < blocks:
            tables = np.pad(tables, ((0, 0), (0, blocks - tables.shape[1])))
        heads = np.arange(kv_heads, dtype=np.int32)[:, None] * (self._model.blocks + 1)
        where = torch.from_numpy((tables[:, None] + heads).reshape(-1))
        values = where + kv_heads * (self._model.blocks + 1)
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        for pool in self._pools:
            by_block = pool.view(-1, size * dim)
            for kept, index in ((self._keys, where), (self._values, values)):
                found = by_block.index_select(0, index).view(rows, kv_heads, blocks * size, dim)
                kept.append(found.to(self._used.dtype))
        self._mask: torch.Tensor | None = None
        if int(call.context.min()) != base:
            hidden = np.zeros((rows, base + columns), np.bool_)
            hidden[:, :base] = np.arange(base) >= call.context[:, None]
            mask = torch.zeros(hidden.shape, dtype=self._used.dtype)
            mask.masked_fill_(torch.from_numpy(hidden), -torch.inf)
            self._mask = mask[:, None, None]
        turn = torch.from_numpy(call.positions.reshape(-1))
        self._cos = self._used.cos.index_select(0, turn).view(rows, columns, 1, dim)
        self._sin = self._used.sin.index_select(0, turn).view(rows, columns, 1, dim)
        self._call = call
        self._done = 0

    def step(self, tokens: torch.Tensor, rows: int, visible: torch.Tensor | None = None) -> torch.Tensor:
        return self._forward(tokens, rows, visible, False)

    def catch_up(self, tokens: torch.Tensor, rows: int) -> torch.Tensor:
        return self._forward(tokens, rows, None, True)

    def finish(self) -> None:
        done, base = self._done, self._base
        rows, kv_heads = len(self._call.context), self._shape.kv_heads
        heads = np.arange(kv_heads, dtype=np.int64)[:, None] * self._slots
        where = torch.from_numpy((self._call.slots[:, None, :done] + heads).reshape(-1))
        values = where + kv_heads * self._slots
        for pool, *new in zip(self._pools, self._keys, self._values):
            for index, found in zip((where, values), new):
                part = found[:, :, base : base + done].reshape(rows * kv_heads * done, -1)
                pool.index_copy_(0, index, part.to(pool.dtype))

    def _forward(self, tokens: torch.Tensor, rows: int, visible: torch.Tensor | None, last_only: bool) -> torch.Tensor:
        used, shape = self._used, self._shape
        heads, kv_heads, share, dim = shape.heads, shape.kv_heads, shape.share, shape.head_dim
        both, half = heads + kv_heads, dim // 2
        size = tokens.shape[0]
        count = size // rows
        start = self._base + self._done
        stop = start + count
        cos, sin = (t[:rows, self._done : self._done + count] for t in (self._cos, self._sin))
        mask = self._seen(rows, count, visible, last_only)
        x = F.embedding(tokens, used.embedding)
        last = len(used.layers) - 1
        for index, layer in enumerate(used.layers):
            qkv = layer.qkv(self._normed(x)).view(rows, count, both + kv_heads, dim)
            qk = qkv[:, :, :both]
            qk = torch.addcmul(qk * cos, qk.roll(half, -1), sin)
            keys, values = self._keys[index][:rows], self._values[index][:rows]
            keys[:, :, start:stop] = qk[:, :, heads:].transpose(1, 2)
            values[:, :, start:stop] = qkv[:, :, both:].transpose(1, 2)
            query = qk[:, :, :heads]
            if last_only and index == last and count > 1:
                query, x, count, mask = query[:, -1:], x.view(rows, count, -1)[:, -1], 1, self._columns(rows, stop)
            query = query.view(rows, count, kv_heads, share, dim).transpose(1, 2)
            query = query.reshape(rows * kv_heads, count * share, dim)
            keys = keys.view(rows * kv_heads, -1, dim)[:, :stop]
            values = values.view(rows * kv_heads, -1, dim)[:, :stop]
            scores = torch.bmm(query, keys.transpose(1, 2))
            if mask is not None:
                scores.view(rows, kv_heads, count, share, stop).add_(mask)
            h = torch.bmm(torch.softmax(scores, -1), values)
            h = h.view(rows, kv_heads, count, share, dim).transpose(1, 2).reshape(rows * count, heads * dim)
            x = x + layer.out(h)
            gate, up = layer.gate_up(self._normed(x)).chunk(2, -1)
            x = x + layer.down(F.silu(gate) * up)
        self._done += size // rows
        return used.head(self._normed(x)).float()

    def _normed(self, x: torch.Tensor) -> torch.Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        scaled: torch.Tensor = x * norm.square_().add_(self._floor).rsqrt_().to(x.dtype)
        return scaled

    def _columns(self, rows: int, stop: int) -> torch.Tensor | None:
        """The mask of contexts, as it goes with scores [rows, kv_heads, queries, share, columns]."""
        return None if self._mask is None else self._mask[:rows, ..., :stop].unsqueeze(1)

    def _seen(self, rows: int, count: int, visible: torch.Tensor | None, causal: bool) -> torch.Tensor | None:
        """What each of `count` queries sees of contexts and of the call's columns."""
        stop = self._base + self._done + count
        mask = self._columns(rows, stop)
        if visible is None and (not causal or count == 1):
            return mask
        if causal and len(self._used.layers) == 1:
            return mask  # only the last query is asked, and it sees everything
        own = torch.zeros(rows, 1, count, 1, stop, dtype=self._used.dtype)
        if visible is None:
            visible = torch.ones(count, self._done + count, dtype=torch.bool).tril_(self._done)[None]
        own[..., self._base :].masked_fill_(~visible[:, None, :, None], -torch.inf)
        return own if mask is None else own + mask


def _prepared(weights: LlamaWeights, shape: Shape, dtype: torch.dtype) -> _Weights:
    root = weights.embedding.shape[1] ** 0.5
    sizes: list[int] = []

    def linear(weight: torch.Tensor, norm: torch.Tensor | None = None, queries: float = 1.0) -> Map:
        whole = weight.double()
        if norm is not None:
            whole = whole * (norm.double() * root)
        if queries != 1.0:
            whole = whole.clone()
            whole[: shape.heads * shape.head_dim] *= queries
        joined = whole.to(dtype)
        sizes.append(joined.numel() * joined.element_size())
        return lambda x: F.linear(x, joined)

    layers = tuple(
        _Layer(
            linear(layer.qkv, layer.before, shape.head_dim**-0.5),
            linear(layer.out),
            linear(layer.gate_up, layer.after),
            linear(layer.down),
        )
        for layer in weights.layers
    )
    head = linear(weights.head, weights.norm)
    embedding, cos, sin = (table.to(dtype) for table in (weights.embedding, weights.cos, weights.sin))
    sizes += [table.numel() * table.element_size() for table in (embedding, cos, sin)]
    return _Weights(dtype, embedding, cos, sin, layers, head, sum(sizes))


def make_stepper(model: PagedModel, folder: Path) -> Stepper:
    """The fastest there is for the model in `folder`."""
    return FusedStepper(model, read_llama(folder, model.max_positions))
