"""A forward pass of the Llama-shaped families in a few kernels per layer, all of it at fixed places in device memory.

The same arithmetic as `covey.runtime.fuse`, on the modules' own weights: the products are the library's, what lies
between them is one kernel each. A layer is nine launches, and a pass can be recorded as it is.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton

from covey.errors import UnsupportedModel
from covey.runtime.attention import Shape
from covey.runtime.device.prompts import Prompts
from covey.runtime.device.store import KVStore
from covey.runtime.kernels.attention import Paging, Parts, Tiles, attend
from covey.runtime.kernels.norms import add_and_norm, gate
from covey.runtime.kernels.rotary import turn_and_keep
from covey.runtime.modules import AttentionSetting

LEAST_WINDOW = 512  # a tree's nodes are never out of their own window
HEADS_TOGETHER = 4
GATE_PIECE = 1024
PROGRAMS_PER_CORE = 2  # of attention, so that long contexts keep all of a GPU busy
MOST_PARTS = 32


class _Layer:
    """One layer's weights, those of the same input joined."""

    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.before, self.after = layer.input_layernorm.weight, layer.post_attention_layernorm.weight
        self.qkv, self.qkv_bias = _join(attention.q_proj, attention.k_proj, attention.v_proj)
        self.out, self.out_bias = _join(attention.o_proj)
        self.gate_up, self.gate_up_bias = _join(mlp.gate_proj, mlp.up_proj)
        self.down, self.down_bias = _join(mlp.down_proj)
        norms = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
        self.normed = norms[0] is not None
        self.query_norm = norms[0].weight if norms[0] is not None else self.before
        self.key_norm = norms[1].weight if norms[1] is not None else self.before


class Decoder:
    """Takes its weights out of `module`, which is of no use afterwards. Raises UnsupportedModel where it differs from
    what the kernels compute."""

    def __init__(
        self, module: Any, shape: Shape, settings: list[AttentionSetting], store: KVStore, positions: int, name: str
    ) -> None:
        core = module.model
        activation = core.layers[0].mlp.act_fn
        if not (isinstance(activation, torch.nn.SiLU) or type(activation).__name__ == "SiLUActivation"):
            raise UnsupportedModel(f"{name}: the kernels know no {type(activation).__name__}")
        if any(0 < setting.window < LEAST_WINDOW for setting in settings):
            raise UnsupportedModel(f"{name}: the kernels want windows of at least {LEAST_WINDOW} tokens")
        self._shape, self._settings, self._store = shape, settings, store
        self._embedding: torch.Tensor = core.embed_tokens.weight
        self._norm = core.norm.weight
        self._epsilon = float(core.norm.variance_epsilon)
        head = module.get_output_embeddings()
        self._head, self._head_bias = head.weight, head.bias
        at = torch.arange(positions, device=self._embedding.device)
        cos, sin = core.rotary_emb(self._embedding[:1], at[None])
        if cos.shape[-1] != shape.head_dim:
            raise UnsupportedModel(f"{name}: the kernels know no partial rotary positions")
        half = shape.head_dim // 2
        self._cos = cos[0].contiguous()
        self._sin = torch.cat((-sin[0, :, :half], sin[0, :, half:]), -1).contiguous()
        self._layers: list[_Layer] = []
        for index in range(len(core.layers)):
            self._layers.append(_Layer(core.layers[index]))
            core.layers[index] = torch.nn.Identity()  # joined weights are copies: never two of a whole model
        self._paging = Paging(store.block_size, store.strides.block, store.segment_blocks)
        device = self._embedding.device
        cores = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 8
        self._programs = PROGRAMS_PER_CORE * cores

    @property
    def weight_bytes(self) -> int:
        """Of what a pass over one token reads: all weights but the embedding, unless that is the head too."""
        parts = [self._head, self._norm]
        for layer in self._layers:
            parts += [layer.before, layer.after, layer.qkv, layer.out, layer.gate_up, layer.down]
        return sum(part.numel() * part.element_size() for part in parts)

    @property
    def plain(self) -> bool:
        """Whether all layers see all keys as they are, without windows or caps."""
        return not any(setting.window or setting.softcap for setting in self._settings)

    def hidden(
        self, tokens: torch.Tensor, slots: torch.Tensor, tiles: Tiles, prompts: Prompts | None = None
    ) -> torch.Tensor:
        """The last hidden states, normed; writes keys and values. Rows of `prompts` have no tiles."""
        shape, store = self._shape, self._store
        heads, dim, size = shape.heads, shape.head_dim, len(tokens)
        stream = F.embedding(tokens, self._embedding)
        normed = torch.empty_like(stream)
        queries = stream.new_empty(size, heads, dim)
        found = torch.zeros_like(queries)  # of tokens that pad the bucket nothing is written
        parts = self._parts(size, len(tiles.first))
        delta: torch.Tensor | None = None
        for index, (layer, setting) in enumerate(zip(self._layers, self._settings)):
            self._add_and_norm(stream, delta, layer.before, normed)
            qkv = F.linear(normed, layer.qkv, layer.qkv_bias)
            offset = index * store.strides.layer
            self._turn_and_keep(qkv, queries, layer, slots, tiles.positions, offset)
            attend(
                queries,
                store.pool,
                store.offsets,
                found,
                tiles,
                parts,
                self._paging,
                kv_heads=shape.kv_heads,
                layer_offset=offset,
                scale=setting.scale,
                window=setting.window,
                softcap=setting.softcap,
            )
            if prompts is not None:
                prompts.attend(queries, found, offset, setting.scale)
            delta = F.linear(found.view(size, -1), layer.out, layer.out_bias)
            self._add_and_norm(stream, delta, layer.after, normed)
            both = F.linear(normed, layer.gate_up, layer.gate_up_bias)
            inner = both.new_empty(size, both.shape[1] // 2)
            gate[(size, triton.cdiv(inner.shape[1], GATE_PIECE))](both, inner, SIZE=inner.shape[1], S=GATE_PIECE)
            delta = F.linear(inner, layer.down, layer.down_bias)
        self._add_and_norm(stream, delta, self._norm, normed)
        return normed

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return F.linear(hidden, self._head, self._head_bias)

    def _add_and_norm(
        self, stream: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, out: torch.Tensor
    ) -> None:
        size, width = stream.shape
        add_and_norm[(size,)](
            stream,
            stream if delta is None else delta,
            weight,
            out,
            self._epsilon,
            ADDED=delta is not None,
            WIDTH=width,
            W=triton.next_power_of_2(width),
            num_warps=8 if width > 2048 else 4,
        )

    def _turn_and_keep(
        self,
        qkv: torch.Tensor,
        queries: torch.Tensor,
        layer: _Layer,
        slots: torch.Tensor,
        positions: torch.Tensor,
        offset: int,
    ) -> None:
        shape, store = self._shape, self._store
        together = triton.cdiv(shape.heads + 2 * shape.kv_heads, HEADS_TOGETHER)
        turn_and_keep[(len(qkv), together)](
            qkv,
            queries,
            store.pool,
            store.offsets,
            slots,
            positions,
            self._cos,
            self._sin,
            layer.query_norm,
            layer.key_norm,
            offset,
            self._epsilon,
            NORMED=layer.normed,
            HEADS=shape.heads,
            KV_HEADS=shape.kv_heads,
            DIM=shape.head_dim,
            BLOCK_SIZE=store.block_size,
            BLOCK_STRIDE=store.strides.block,
            SEGMENT=store.segment_blocks,
            D=triton.next_power_of_2(shape.head_dim),
            GROUP=HEADS_TOGETHER,
            num_warps=1,
        )

    def _parts(self, tokens: int, tiles: int) -> Parts:
        """Contexts are split as far as a pass has too few programs for the device."""
        shape = self._shape
        wanted = self._programs // (tiles * shape.kv_heads)
        count = min(1 << max(wanted.bit_length() - 1, 0), MOST_PARTS)
        lines = tokens * shape.heads * count if count > 1 else 0
        device = self._embedding.device
        heights = torch.full((lines,), -torch.inf, device=device)  # of tokens that pad the bucket nothing is written
        return Parts(count, torch.empty(lines * shape.head_dim, device=device), heights)


def _join(*linears: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weight and bias of several linear maps of the same input as one."""
    biases = [linear.bias for linear in linears if linear.bias is not None]
    if biases and len(biases) != len(linears):
        raise UnsupportedModel("the kernels know no layer of which some maps have a bias and others none")
    if len(linears) == 1:
        return linears[0].weight, linears[0].bias
    weight = torch.cat([linear.weight for linear in linears])
    return weight, torch.cat(biases) if biases else None
