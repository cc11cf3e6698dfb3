"""A decoder's graph for OpenVINO, from the weights' files: attention is its paged operation over block tables of ours.

    tokens [n]   past [n]   tables [m], begins [n + 1], key_cache.L, value_cache.L   wanted [w]
       |           |             |                                                      |
    embedding   rotary, and every layer's attention              rows that go on to the last norm and the head

Every token is a subsequence of its own, of one query at position `past`, whose block table begins at `tables[begins]`:
so no result depends on how a row's tokens are spread over passes (see `decoder.py`).
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import Type
from openvino import opset13 as op
from openvino.op import _PagedAttentionExtension as PagedAttention

from covey.models.openvino import BYTES
from covey.models.openvino.architecture import Architecture
from covey.models.stored import Stored

_KINDS = {"bfloat16": Type.bf16, "float32": Type.f32, BYTES: Type.f32}  # of keys, values and activations
_EMBEDDING = "model.embed_tokens.weight"
_TYPES = {"BF16": Type.bf16, "F16": Type.f16, "F32": Type.f32}


def kind_of(dtype: str) -> Type:
    return _KINDS[dtype]


def build(model: Architecture, dtype: str, *, gaps: bool = False) -> tuple[ov.Model, Weights]:
    """The graph, whose result is the logits of the `wanted` tokens, and what it shows. With `gaps` it has
    `positions [n]` too: of a text that was not read whole, a token's position is another than how many keys are before
    it."""
    graph = _Graph(model, dtype, gaps)
    return graph.model(), graph.weights


class Weights:
    """Constants over the files' own pages, where these hold what the graph multiplies, else over memory of their own.
    It has to outlive whatever is made of the graph."""

    def __init__(self, held: Mapping[str, Stored], dtype: str) -> None:
        self._held, self._made = held, dict[str, Any]()
        self.kind, self.small = kind_of(dtype), dtype == BYTES
        self._maps: dict[Path, mmap.mmap] = {}
        self._own: list[npt.NDArray[np.uint8]] = []

    def __contains__(self, name: str) -> bool:
        return name in self._held

    def vector(self, name: str) -> Any:
        """A norm's weight or a bias, in float32."""
        return op.constant(_float32(self._held[name]))

    def matrix(self, name: str) -> Any:
        """What rows are multiplied by or gathered from, in the type that this is done in."""
        if name not in self._made:
            tensor = self._held[name]
            if _TYPES[tensor.dtype] == self.kind:
                values = self._shown(tensor)
            else:
                values = _rounded(_float32(tensor), self.kind)
                self._own.append(values)
            shown = ov.Tensor(values.view(f"u{self.kind.size}"), ov.Shape(tensor.shape), self.kind)
            self._made[name] = op.constant(shown, shared_memory=True)
        return self._made[name]

    def rows(self, name: str) -> Any:
        """A matrix that rows are gathered from, in float32 once they are."""
        tensor = self._held[name]
        if not self.small or _TYPES[tensor.dtype] != Type.bf16:
            return self.matrix(name)
        shown = ov.Tensor(self._shown(tensor).view(np.uint16), ov.Shape(tensor.shape), Type.bf16)
        return op.constant(shown, shared_memory=True)

    def eighth(self, name: str) -> Any:
        """A matrix of one byte per number and a scale per row."""
        values = _float32(self._held[name])
        scale = np.maximum(np.abs(values).max(axis=1, keepdims=True), np.float32(1e-12)) / np.float32(127)
        return op.multiply(
            op.convert(op.constant(np.rint(values / scale).astype(np.int8)), Type.f32), op.constant(scale)
        )

    def trim(self) -> None:
        """Have the files' pages out of memory until they are read again, which the runtime rarely does once it has made
        a form of its own of them."""
        for pages in self._maps.values():
            pages.madvise(mmap.MADV_DONTNEED)

    def _shown(self, tensor: Stored) -> npt.NDArray[np.uint8]:
        if tensor.begin % self.kind.size:
            self._own.append(np.fromfile(tensor.file, np.uint8, tensor.size, offset=tensor.begin))
            return self._own[-1]
        if tensor.file not in self._maps:
            with tensor.file.open("rb") as file:
                self._maps[tensor.file] = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        return np.frombuffer(self._maps[tensor.file], np.uint8, tensor.size, tensor.begin)


def _float32(tensor: Stored) -> npt.NDArray[np.float32]:
    raw = np.fromfile(tensor.file, np.uint8, tensor.size, offset=tensor.begin)
    if tensor.dtype == "BF16":
        values = (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        values = raw.view({"F16": np.float16, "F32": np.float32}[tensor.dtype]).astype(np.float32)
    return values.reshape(tensor.shape)


def _rounded(values: npt.NDArray[np.float32], kind: Type) -> npt.NDArray[np.uint8]:
    """Bytes of the numbers in another type; those halfway between two of bfloat16 become the even one."""
    bits = values.reshape(-1).view(np.uint32)
    if kind == Type.bf16:
        bits = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return bits.view(np.uint8)


class _Graph:
    def __init__(self, model: Architecture, dtype: str, gaps: bool) -> None:
        self._of, self.weights = model, Weights(model.weights, dtype)
        self._parameters: list[Any] = []
        self._tokens = self._parameter("tokens", [-1])
        self._past = self._parameter("past", [-1])
        self._positions = self._parameter("positions", [-1]) if gaps else self._past
        self._begins = self._parameter("begins", [-1])
        self._tables = self._parameter("tables", [-1])
        self._bounds = self._parameter("bounds", [-1])  # 0 to n: where each subsequence begins
        self._longest = self._parameter("longest", [])  # keys of the longest subsequence
        self._cos, self._sin = self._rotary()

    def model(self) -> ov.Model:
        of = self._of
        rows = op.gather(self.weights.rows(_EMBEDDING), self._tokens, _axis(0))
        x = op.unsqueeze(op.convert(rows, Type.f32), _ints(1))
        for layer in range(of.layers):
            x = self._layer(x, layer)
        x = self._norm(op.gather(x, self._parameter("wanted", [-1]), _axis(0)), "model.norm")
        name = _EMBEDDING if of.tied and "lm_head.weight" not in self.weights else "lm_head.weight"
        logits = op.result(op.squeeze(self._product(x, name), _ints(1)))
        return ov.Model([logits], self._parameters, "decoder")

    def _parameter(self, name: str, shape: list[int], kind: Type = Type.i32) -> Any:
        made = op.parameter(shape, kind, name)
        made.output(0).tensor.set_names({name})
        self._parameters.append(made)
        return made

    def _product(self, x: Any, name: str) -> Any:
        kind = self.weights.kind
        if self.weights.small:
            return op.matmul(x, self.weights.eighth(name), False, True)
        return op.convert(op.matmul(op.convert(x, kind), self.weights.matrix(name), False, True), Type.f32)

    def _linear(self, x: Any, name: str) -> Any:
        y = self._product(x, f"{name}.weight")
        return op.add(y, self.weights.vector(f"{name}.bias")) if f"{name}.bias" in self.weights else y

    def _norm(self, x: Any, name: str) -> Any:
        mean = op.reduce_mean(op.power(x, _float(2.0)), _ints(-1), True)
        scale = op.divide(_float(1.0), op.sqrt(op.add(mean, _float(self._of.eps))))
        return op.multiply(self.weights.vector(f"{name}.weight"), op.multiply(x, scale))

    def _rotary(self) -> tuple[Any, Any]:
        """Cosines and sines [n, 1, 1, dim], from a table: angles computed in a graph would be in the passes' type, and
        bfloat16 has no odd position above 256."""
        at = np.arange(self._of.max_positions, dtype=np.float32)[:, None]
        angles = (at * np.asarray(self._of.frequencies, np.float32)).astype(np.float64)
        turns = []
        for values in (np.cos(angles), np.sin(angles)):
            table = op.constant((values * self._of.factor).astype(np.float32)[:, None, None])
            half = op.gather(table, self._positions, _axis(0))
            turns.append(op.concat([half, half], -1))
        return turns[0], turns[1]

    def _heads(self, x: Any, count: int, norm: str) -> Any:
        """Queries or keys [n, heads, 1, dim], turned."""
        y = op.reshape(x, _ints(0, 0, count, self._of.head_dim), True)
        if f"{norm}.weight" in self.weights:
            y = self._norm(y, norm)
        y = op.transpose(y, _ints(0, 2, 1, 3))
        half = self._of.head_dim // 2
        first, second = op.variadic_split(y, _axis(3), _ints(half, half)).outputs()
        rolled = op.concat([op.multiply(second, _float(-1.0)), first], -1)
        turned = op.add(op.multiply(y, self._cos), op.multiply(rolled, self._sin))
        return op.reshape(op.transpose(turned, _ints(0, 2, 1, 3)), _ints(0, count * self._of.head_dim), True)

    def _layer(self, x: Any, layer: int) -> Any:
        of, at = self._of, f"model.layers.{layer}"
        attention, mlp = f"{at}.self_attn", f"{at}.mlp"
        y = self._norm(x, f"{at}.input_layernorm")
        query = self._heads(self._linear(y, f"{attention}.q_proj"), of.heads, f"{attention}.q_norm")
        key = self._heads(self._linear(y, f"{attention}.k_proj"), of.kv_heads, f"{attention}.k_norm")
        value = op.squeeze(self._linear(y, f"{attention}.v_proj"), _ints(1))
        seen = op.reshape(self._attention(query, key, value, layer), _ints(-1, of.heads * of.head_dim), False)
        x = op.add(x, self._linear(op.unsqueeze(seen, _ints(1)), f"{attention}.o_proj"))
        y = self._norm(x, f"{at}.post_attention_layernorm")
        gated = op.multiply(op.swish(self._linear(y, f"{mlp}.gate_proj")), self._linear(y, f"{mlp}.up_proj"))
        return op.add(x, self._linear(gated, f"{mlp}.down_proj"))

    def _attention(self, query: Any, key: Any, value: Any, layer: int) -> Any:
        """All 28 inputs of the operation: those after `longest` belong to what is not used here (scores, evicted and
        turned blocks, sparse attention, sinks, token types)."""
        of = self._of
        keys = self._parameter(f"key_cache.{layer}", [-1, -1, -1, -1], Type.dynamic)
        values = self._parameter(f"value_cache.{layer}", [-1, -1, -1, -1], Type.dynamic)
        none, nothing = op.constant(np.int32(0)), op.constant(np.zeros(0, np.int32))
        no_floats, no_sinks = op.constant(np.zeros(0, np.float32)), op.constant(np.zeros((0, 0, 0, 0), np.float32))
        used = [query, key, value, keys, values, self._past, self._bounds, self._tables, self._begins]
        used += [_float(of.head_dim**-0.5), none, no_floats, self._longest]
        rest = [nothing, nothing, nothing, no_floats, no_floats, none, none, no_sinks, none]
        rest += [nothing, nothing, nothing, nothing, op.constant(np.zeros(0, np.uint8)), nothing]
        attention = PagedAttention([each.output(0) for each in (*used, *rest)])
        info = attention.get_rt_info()
        for name, count in (("k", of.kv_heads), ("v", of.kv_heads)):
            info[f"num_{name}_heads"], info[f"{name}_head_size"] = count, of.head_dim
        return attention.output(0)


def _float(value: float) -> Any:
    return op.constant(np.array(value, np.float32))


def _ints(*values: int) -> Any:
    return op.constant(np.array(values, np.int64))


def _axis(value: int) -> Any:
    return op.constant(np.int64(value))
