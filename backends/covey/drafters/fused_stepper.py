"""The stepper for plain Llamas on a CPU: keys are gathered once per call, and a step is little but arithmetic.

A pass over the paged model builds lanes, masks and gathers anew each time, which costs more than a small model
computes. Here a call's rows are brought together once, in `begin`: their context's keys in the columns up to `base`,
then one column for each token of the call, written as it is computed. `finish` writes those back to the pool.

    |<- context, rows of unequal length padded and masked ->|<- tokens of this call: pending ones, then proposals ->|
                                                            base

Keys carry their position already, so that columns need no order.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from covey.drafters.maps import COPY_BYTES, Folded, fold, plain_maps, vector_maps
from covey.drafters.stepper import Call
from covey.drafters.weights import LlamaWeights
from covey.models.model import PagedModel

FEW = 3  # tokens of a step up to which the maps for vectors are faster (measured)
TABLE_BYTES = 16 << 20  # what a table of all tokens' queries, keys and values in the first layer may take


class FusedStepper:
    """Steps of Llama itself on a CPU: full attention, no biases, no norms of queries and keys."""

    def __init__(self, model: PagedModel, weights: LlamaWeights) -> None:
        shape = model.shape
        self._shape = shape
        self._block_size = model.block_size
        self._blocks = model.pools[0].shape[1] // model.block_size  # that have addresses, padding's among them
        self._pools = [pool.view(-1, shape.head_dim) for pool in model.pools]
        self._width = weights.embedding.shape[1]
        self._floor = weights.eps * self._width
        half = model.torch_dtype in (torch.bfloat16, torch.float16)
        self._dtype = torch.float32 if half else model.torch_dtype
        folded = fold(weights, shape)
        self._many = self._few = plain_maps(folded, model.torch_dtype)
        if half and 4 * folded.count <= COPY_BYTES:
            self._few = vector_maps(folded, model.torch_dtype)
        self._first = _first_table(weights, folded).to(self._dtype)
        self._all_cos, self._all_sin = weights.cos.to(self._dtype), weights.sin.to(self._dtype)
        self.resident_bytes = (
            self._many.bytes
            + (self._few.bytes if self._few is not self._many else 0)
            + self._first.numel() * self._first.element_size()
        )
        self._heads = np.arange(2 * shape.kv_heads, dtype=np.int32).reshape(2, 1, shape.kv_heads, 1)

    def begin(self, call: Call, lanes: int) -> None:
        size, dim = self._block_size, self._shape.head_dim
        self._maps = self._few if lanes <= FEW else self._many
        rows, columns = call.positions.shape
        self._base = base = int(call.context.max())
        blocks = -(-(base + columns) // size)
        tables = call.tables[:, :blocks]
        if tables.shape[1] < blocks:
            tables = np.pad(tables, ((0, 0), (0, blocks - tables.shape[1])))
        where = torch.from_numpy((tables[:, None] + self._heads * self._blocks).reshape(-1))
        self._kv: list[torch.Tensor] = []  # of each layer: [keys and values, rows, kv_heads, columns, head_dim]
        for pool in self._pools:
            copied = pool.view(-1, size * dim).index_select(0, where).view(2, rows, -1, blocks * size, dim)
            self._kv.append(copied.to(self._dtype))
        self._mask: torch.Tensor | None = None
        if int(call.context.min()) != base:
            hidden = np.zeros((rows, base + columns), np.bool_)
            hidden[:, :base] = np.arange(base) >= call.context[:, None]
            mask = torch.zeros(hidden.shape, dtype=self._dtype).masked_fill_(torch.from_numpy(hidden), -torch.inf)
            self._mask = mask.view(rows, 1, 1, 1, -1)  # the shape of scores: row, key head, query, its heads, column
        turned = self._shape.heads + self._shape.kv_heads  # values turn by nothing
        at = torch.from_numpy(call.positions.reshape(-1))
        self._cos = torch.ones(rows, columns, turned + self._shape.kv_heads, dim, dtype=self._dtype)
        self._sin = torch.zeros_like(self._cos)
        self._cos[:, :, :turned] = self._all_cos.index_select(0, at).view(rows, columns, 1, dim)
        self._sin[:, :, :turned] = self._all_sin.index_select(0, at).view(rows, columns, 1, dim)
        self._keys = [kv[0].flatten(0, 1).transpose(1, 2) for kv in self._kv]
        self._values = [kv[1].flatten(0, 1) for kv in self._kv]
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
            pool.index_copy_(0, where, new.to(pool.dtype))

    def _forward(
        self, tokens: torch.Tensor, rows: int, count: int, mask: torch.Tensor | None, last_only: bool
    ) -> torch.Tensor:
        maps, shape, width = self._maps, self._shape, self._width
        heads, kv_heads, share, dim = shape.heads, shape.kv_heads, shape.share, shape.head_dim
        lanes, half = rows * kv_heads, dim // 2
        done = self._done
        self._done = done + count
        start, stop = self._base + done, self._base + done + count
        cos, sin = self._cos.narrow(1, done, count), self._sin.narrow(1, done, count)
        if rows < len(self._slots):
            cos, sin = cos[:rows], sin[:rows]
        first = self._first.index_select(0, tokens)
        x = first.narrow(1, 0, width)
        for index, layer in enumerate(maps.layers):
            qkv = first[:, width:] if index == 0 and first.shape[1] > width else layer.qkv(self._normed(x))
            qkv = qkv.view(rows, count, heads + 2 * kv_heads, dim)
            qkv = torch.addcmul(qkv * cos, qkv.roll(half, -1), sin)
            new = qkv.narrow(2, heads, 2 * kv_heads).view(rows, count, 2, kv_heads, dim).permute(2, 0, 3, 1, 4)
            kv = self._kv[index].narrow(3, start, count)
            (kv if rows == len(self._slots) else kv[:, :rows]).copy_(new)
            query = qkv.narrow(2, 0, heads)
            if last_only and count > 1 and index == len(maps.layers) - 1:
                query, x, mask = query[:, -1:], x.view(rows, count, -1)[:, -1], self._context(rows, 0)
                count = 1
            if count > 1:
                query = query.reshape(rows, count, kv_heads, share, dim).transpose(1, 2)
            query = query.reshape(lanes, count * share, dim)
            keys, values = self._keys[index].narrow(2, 0, stop), self._values[index].narrow(1, 0, stop)
            if rows < len(self._slots):
                keys, values = keys[:lanes], values[:lanes]
            scores = torch.bmm(query, keys)
            if mask is not None:
                scores.view(rows, kv_heads, count, share, stop).add_(mask)
            h = torch.bmm(torch.softmax(scores, -1), values)
            if count > 1:
                h = h.view(rows, kv_heads, count, share, dim).transpose(1, 2)
            x = x + layer.out(h.reshape(rows * count, heads * dim))
            gate_up = layer.gate_up(self._normed(x))
            size = gate_up.shape[1] // 2
            x = x + layer.down(F.silu(gate_up.narrow(1, 0, size)).mul_(gate_up.narrow(1, size, size)))
        return maps.head(self._normed(x)).float()

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
        own = torch.zeros(rows, 1, count, 1, self._base + columns, dtype=self._dtype)
        own[..., self._base :].masked_fill_(~visible[:, None, :, None], -torch.inf)
        return own if mask is None else own + mask


def _first_table(weights: LlamaWeights, folded: Folded) -> torch.Tensor:
    """A row for each token: its embedding and, where there is room for such a table, its queries, keys and values in
    the first layer, which depend on nothing else."""
    embedding, qkv = weights.embedding.double(), folded.layers[0][0]
    if 4 * len(embedding) * len(qkv) > TABLE_BYTES:
        return embedding
    square = embedding.square().sum(-1, keepdim=True)
    return torch.cat((embedding, embedding * (square + weights.eps * embedding.shape[1]).rsqrt() @ qkv.t()), -1)
