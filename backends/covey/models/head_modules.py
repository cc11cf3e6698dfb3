"""A head as PyTorch computes it: transformers' Llama of one layer, which reads a state beside each token's embedding.

Covey's kernels take their weights from these modules, too. See `heads` for what heads and states are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding

from covey.contracts.errors import UnsupportedModel
from covey.contracts.types import Floats, Ints
from covey.models import loading
from covey.models.heads import Head
from covey.models.lanes import Pass
from covey.models.model import PagedModel
from covey.models.modules import Modules
from covey.models.native.weights import floats


class HeadLayer(LlamaDecoderLayer):  # type: ignore[misc]
    """The layer. Its caller sets `given` before a pass and reads `output` after it."""

    def __init__(self, config: LlamaConfig, *, normed_residual: bool) -> None:
        super().__init__(config, 0)
        for name in ("q_proj", "k_proj", "v_proj"):
            rows = getattr(self.self_attn, name).out_features
            setattr(self.self_attn, name, nn.Linear(2 * config.hidden_size, rows, bias=False))
        self.hidden_norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.normed_residual = normed_residual
        self.given: torch.Tensor | None = None  # states [tokens, width]; None: the embeddings, to try the modules
        self.output = torch.empty(0)

    def forward(self, hidden_states: torch.Tensor, **rest: Any) -> torch.Tensor:
        states = hidden_states
        if self.given is not None:  # the tokens may be padded
            states = F.pad(self.given, (0, 0, 0, hidden_states.shape[1] - len(self.given)))[None]
        beside = self.hidden_norm(states)
        attended, _ = self.self_attn(hidden_states=torch.cat([self.input_layernorm(hidden_states), beside], -1), **rest)
        stream = (beside if self.normed_residual else states) + attended
        self.output = stream + self.mlp(self.post_attention_layernorm(stream))
        return self.output


class HeadOutput(nn.Linear):
    """The output of a head that knows only some tokens of its target: it gives the others no chance."""

    def __init__(self, width: int, ids: torch.Tensor, vocab_size: int) -> None:
        super().__init__(width, len(ids), bias=False)
        self.ids, self._vocab_size = ids, vocab_size

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return widened(super().forward(hidden), self.ids, self._vocab_size)


def widened(logits: torch.Tensor, ids: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Return logits over the target's whole vocabulary."""
    wide = logits.new_full((*logits.shape[:-1], vocab_size), -torch.inf)
    return wide.index_copy_(-1, ids, logits)


def read(head: Head, folder: Path, *, dtype: str, device: str) -> Modules:
    """Return the modules of a head."""
    where = loading.choose_device(device)
    kind, of = loading.choose_dtype(dtype, where), head.of
    if of.width % of.heads:
        raise UnsupportedModel(f"{folder}: PyTorch computes no head of width {of.width} with {of.heads} query heads")
    config = LlamaConfig(
        vocab_size=head.target_vocab,
        hidden_size=of.width,
        intermediate_size=of.inner,
        num_hidden_layers=1,
        num_attention_heads=of.heads,
        num_key_value_heads=of.kv_heads,
        head_dim=of.head_dim,
        rms_norm_eps=of.eps,
        max_position_embeddings=of.max_positions,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    config.normed_output = of.normed_output
    with torch.device("meta"):
        module = LlamaForCausalLM(config)
        module.model.layers[0] = HeadLayer(config, normed_residual=of.normed_residual)
    if head.ids is not None:
        ids = torch.from_numpy(head.ids.astype(np.int64)).to(where)
        with torch.device("meta"):
            module.lm_head = HeadOutput(of.width, ids, head.target_vocab)
    weights = {
        name: torch.from_numpy(floats(of.weights[name])).to(where, kind) for name, _ in module.named_parameters()
    }
    module.load_state_dict(weights, assign=True)
    rotary = LlamaRotaryEmbedding(config)
    rotary.inv_freq, rotary.attention_scaling = torch.tensor(of.frequencies, dtype=torch.float32), of.factor
    module.model.rotary_emb = rotary.to(where)
    return Modules.of(module.requires_grad_(False).eval(), str(folder))


class PagedHead(PagedModel):
    """A head with a model's interface. A pass without states reads embeddings in their place."""

    @property
    def width(self) -> int:
        """Return how many numbers a state has."""
        return int(self._modules.config.hidden_size)

    @torch.inference_mode()
    def forward(self, work: Pass) -> torch.Tensor:
        core = self._modules.module.model
        layer: HeadLayer = core.layers[0]
        layer.given = None
        if work.states is not None:
            layer.given = torch.from_numpy(work.states).to(self.torch_device, self.torch_dtype)
        logits = super().forward(work)
        self._above = core.norm(layer.output[0]) if self._modules.config.normed_output else layer.output[0]
        return logits

    def outputs(self, tokens: Ints) -> Floats:
        """Return what the head made of these tokens of the last pass, which a later step reads in place of states."""
        found: Floats = self._above[torch.from_numpy(tokens).to(self.torch_device).long()].float().cpu().numpy()
        return found
