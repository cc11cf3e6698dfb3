"""A forward pass of the Llama-shaped families in a few kernels per layer, all at fixed addresses in device memory.

It computes the modules' own arithmetic with their weights. Query, key and value are one product; so are gate and up. A
layer takes nine or ten launches, and the whole pass can be recorded.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import triton

from covey.contracts.errors import UnsupportedModel
from covey.gpu.kernels.attention import Parts, Tiles, attend
from covey.gpu.kernels.rotary import turn_and_keep
from covey.gpu.layers import ByLibrary, Fixed, Layer
from covey.gpu.store import KVStore
from covey.gpu.tilings import Tiling
from covey.models.attention import Shape
from covey.models.head_modules import widened
from covey.models.modules import AttentionSetting

LEAST_WINDOW = 512  # tokens; no path of a tree is as long, so a node always sees its whole path
HEADS_TOGETHER = 4


@dataclass(frozen=True, slots=True)
class Hidden:
    """The last hidden states of a pass [tokens, width]: normed, and as the last layer leaves them. Then what the tapped
    layers read."""

    normed: torch.Tensor
    stream: torch.Tensor
    taps: list[torch.Tensor]


class Decoder:
    """Takes its weights out of `module`, which cannot be used afterwards. Raises UnsupportedModel if the module differs
    from what the kernels compute."""

    def __init__(
        self,
        module: Any,
        shape: Shape,
        settings: list[AttentionSetting],
        store: KVStore,
        tiling: Tiling,
        positions: int,
        name: str,
        tapped: Collection[int] = (),
    ) -> None:
        core = module.model
        activation = core.layers[0].mlp.act_fn
        if not (isinstance(activation, torch.nn.SiLU) or type(activation).__name__ == "SiLUActivation"):
            raise UnsupportedModel(f"{name}: the kernels do not compute {type(activation).__name__}")
        if any(0 < setting.window < LEAST_WINDOW for setting in settings):
            raise UnsupportedModel(f"{name}: the kernels need windows of at least {LEAST_WINDOW} tokens")
        self._shape, self._settings, self._store = shape, settings, store
        self._embedding: torch.Tensor = core.embed_tokens.weight
        self._norm = core.norm.weight
        self._epsilon = float(core.norm.variance_epsilon)
        head = module.get_output_embeddings()
        self._head, self._head_bias = head.weight, head.bias
        self._ids: torch.Tensor | None = getattr(head, "ids", None)
        self._vocab_size, self._tapped = int(module.config.vocab_size), tapped
        at = torch.arange(positions, device=self._embedding.device)
        cos, sin = core.rotary_emb(self._embedding[:1], at[None])
        if cos.shape[-1] != shape.head_dim:
            raise UnsupportedModel(f"{name}: the kernels do not compute partial rotary positions")
        half = shape.head_dim // 2
        self._cos = cos[0].contiguous()
        self._sin = torch.cat((-sin[0, :, :half], sin[0, :, half:]), -1).contiguous()
        self._layers: list[Layer] = []
        for index in range(len(core.layers)):
            self._layers.append(Layer(core.layers[index]))
            core.layers[index] = torch.nn.Identity()  # joined weights are copies: hold only one layer of them twice
        self._span = tiling.span
        self._form: type[ByLibrary] = Fixed if self._span else ByLibrary

    @property
    def weight_bytes(self) -> int:
        """Return the bytes read by a pass over one token: all weights, but the embedding only if it is also the
        head."""
        head = (self._head.numel() + self._norm.numel()) * self._head.element_size()
        return int(head) + sum(layer.bytes for layer in self._layers)

    def embedded(self, tokens: torch.Tensor) -> torch.Tensor:
        return F.embedding(tokens, self._embedding)

    def hidden(
        self, tokens: torch.Tensor, slots: torch.Tensor, tiles: Tiles, states: torch.Tensor | None = None
    ) -> Hidden:
        """Compute a pass; write keys and values. A head's layer also reads the tokens' `states`."""
        shape, store = self._shape, self._store
        size, taps = len(tokens), dict[int, torch.Tensor]()
        told = self._form(self.embedded(tokens), self._epsilon)
        stream = told if states is None else self._form(states.clone(), self._epsilon)
        queries = self._embedding.new_empty(size, shape.heads, shape.head_dim)
        attended = torch.zeros_like(queries)  # attention writes nothing for tokens that pad the bucket
        parts = self._parts(size, tiles.parts)
        for index, (layer, setting) in enumerate(zip(self._layers, self._settings)):
            offset = index * store.layout.layer
            if states is None:
                qkv = stream.queries_keys_values(layer)
            else:
                qkv = stream.of_pair(layer, told.last(layer.before))
            if index in self._tapped:
                taps[index] = stream.stream.clone()
            self._turn_and_keep(qkv, queries, layer, slots, tiles.positions, offset)
            attend(
                queries,
                store.pool,
                store.offsets,
                attended,
                tiles,
                parts,
                store.layout,
                layer_offset=offset,
                scale=setting.scale,
                window=setting.window,
                softcap=setting.softcap,
            )
            stream.take(layer, attended.view(size, -1))
            stream.feed_forward(layer)
        return Hidden(stream.last(self._norm), stream.stream, [taps[layer] for layer in self._tapped])

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self._form.product(hidden, self._head, self._head_bias)
        return logits if self._ids is None else widened(logits, self._ids, self._vocab_size)

    def _turn_and_keep(
        self,
        qkv: torch.Tensor,
        queries: torch.Tensor,
        layer: Layer,
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
            BLOCK_SIZE=store.layout.block_size,
            BLOCK_STRIDE=store.layout.block,
            SEGMENT=store.layout.segment_blocks,
            D=triton.next_power_of_2(shape.head_dim),
            GROUP=HEADS_TOGETHER,
            num_warps=1,
        )

    def _parts(self, tokens: int, count: int) -> Parts:
        shape, device = self._shape, self._embedding.device
        lines = tokens * shape.heads * count if count > 1 or self._span else 0
        heights = torch.full((lines,), -torch.inf, device=device)  # attention writes nothing for padding tokens
        return Parts(torch.empty(lines * shape.head_dim, device=device), heights, self._span)
