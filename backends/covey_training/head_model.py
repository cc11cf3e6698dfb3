"""An EAGLE-3 head: one layer that reads the target's hidden states and drafts the tokens after the one drawn from them.

At index i it reads the target's states at position i and the token at position i + 1, and predicts the token at
position i + 2. So n tokens have n - 1 indices; the rotary position of index i is i. In deeper steps of a draft, its own
layer's output at the previous index replaces the target's states. Each parameter has its tensor's name on disk. The
embedding is the target's: the caller looks tokens up.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import LlamaConfig, PretrainedConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)

from covey.contracts.errors import SettingError, UnsupportedModel
from covey.models import heads, loading, stored
from covey.models.native.weights import floats
from covey_training import architecture

WEIGHTS = "model.safetensors"
ARCHITECTURE = "LlamaForCausalLMEagle3"
AUX_LAYERS = "eagle_aux_hidden_state_layer_ids"
Past = list[tuple[torch.Tensor, torch.Tensor]]


def tapped_layers(layers: int) -> list[int]:
    """Return the layers whose input the head reads, counted from 0: an early, the middle and a late one. If two of
    these would coincide in a small target, return the second, the middle and the last layer."""
    if layers < 2:
        raise UnsupportedModel(f"a target of {layers} layer is not supported: a head reads the output of a layer")
    chosen = [2, layers // 2, layers - 3]
    if not 0 < chosen[0] < chosen[1] < chosen[2]:
        chosen = [1, max(1, layers // 2), layers - 1]
    return chosen


def describe(target: PretrainedConfig, draft_vocabulary: int) -> LlamaConfig:
    """Return the configuration of a head for this target in SpecForge's format, which counts layers by their output."""
    heads = int(target.num_attention_heads)
    return LlamaConfig(
        architectures=[ARCHITECTURE],
        vocab_size=int(target.vocab_size),
        draft_vocab_size=draft_vocabulary,
        hidden_size=int(target.hidden_size),
        intermediate_size=int(target.intermediate_size),
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=int(getattr(target, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(target, "head_dim", None) or target.hidden_size // heads),
        hidden_act="silu",
        rms_norm_eps=float(target.rms_norm_eps),
        max_position_embeddings=loading.find_max_positions(target),
        rope_parameters=dict(target.rope_parameters),
        tie_word_embeddings=False,
        bos_token_id=target.bos_token_id,
        eos_token_id=target.eos_token_id,
        pad_token_id=None,
        eagle_config={
            AUX_LAYERS: [layer - 1 for layer in tapped_layers(int(target.num_hidden_layers))],
            "use_aux_hidden_state": True,
        },
    )


class Attention(nn.Module):
    """Causal attention over the target's states, and over the head's own outputs after them."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.head_dim, self.kv_heads = config.head_dim, config.num_key_value_heads
        inputs, queries = 2 * config.hidden_size, config.num_attention_heads * self.head_dim
        keys = self.kv_heads * self.head_dim
        self.q_proj = nn.Linear(inputs, queries, bias=False)
        self.k_proj = nn.Linear(inputs, keys, bias=False)
        self.v_proj = nn.Linear(inputs, keys, bias=False)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)

    def forward(self, x: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor], past: Past) -> torch.Tensor:
        """Attend from each place of `x`, (rows, n, 2 * width), and append its keys and values to `past`.

        Place t sees the first keys in `past` up to place t. It sees each later step's keys only at place t, which
        belong to the draft that begins there.
        """
        rows, n, _ = x.shape
        q, k, v = (
            projection(x).view(rows, n, -1, self.head_dim).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = apply_rotary_pos_emb(q, k, *rotary)
        past.append((k, v))
        q = q.unflatten(1, (self.kv_heads, -1)) * self.head_dim**-0.5
        (keys, values), *drafted = [(k[:, :, None, :n], v[:, :, None, :n]) for k, v in past]
        later = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
        scores = [(q @ keys.transpose(-1, -2)).masked_fill(later, -torch.inf)]
        scores += [(q * k).sum(-1, keepdim=True) for k, _ in drafted]
        shares = torch.cat(scores, -1).softmax(-1, dtype=torch.float32).to(v.dtype)
        mixed = shares[..., :n] @ values
        for place, (_, v) in enumerate(drafted, n):
            mixed = mixed + shares[..., place, None] * v
        return cast(torch.Tensor, self.o_proj(mixed.flatten(1, 2).transpose(1, 2).flatten(2)))


class Layer(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = LlamaMLP(config)
        size = config.hidden_size, config.rms_norm_eps
        self.input_layernorm, self.hidden_norm = LlamaRMSNorm(*size), LlamaRMSNorm(*size)
        self.post_attention_layernorm = LlamaRMSNorm(*size)

    def forward(
        self, embedding: torch.Tensor, state: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor], past: Past
    ) -> torch.Tensor:
        both = torch.cat([self.input_layernorm(embedding), self.hidden_norm(state)], -1)
        state = state + self.self_attn(both, rotary, past)
        return cast(torch.Tensor, state + self.mlp(self.post_attention_layernorm(state)))


class Head(nn.Module):
    """The module; `kept` are the target's ids in a smaller draft vocabulary."""

    def __init__(self, config: Any, kept: torch.Tensor | None = None) -> None:
        super().__init__()
        self.config, self.kept = config, kept
        self.layers = [layer + 1 for layer in config.eagle_config[AUX_LAYERS]]  # the layers whose input it reads
        width = config.hidden_size
        self.fc = nn.Linear(3 * width, width, bias=False)
        self.scale = nn.Buffer(torch.ones(3, 1))  # factors of taps before `fc`; `save` puts them into its weights
        self.midlayer = Layer(config)
        self.norm = LlamaRMSNorm(width, config.rms_norm_eps)
        self.lm_head = nn.Linear(width, config.draft_vocab_size, bias=False)
        self.rotary = LlamaRotaryEmbedding(config)

    def unroll(self, taps: torch.Tensor, embeddings: torch.Tensor, steps: int) -> Iterator[torch.Tensor]:
        """Yield, for each step, the logits of the drafts' tokens at that depth, given true tokens before them.

        `taps` is (rows, n, 3 * width); `embeddings` is (rows, n, width), of the token after each. Step s yields (rows,
        n - s, draft vocabulary). Place t is the draft that reads the target's states up to index t, then its own
        outputs of s steps. It knows the tokens up to position t + s + 1 and predicts the one at t + s + 2.
        """
        state, past = self.fc((taps.unflatten(-1, (3, -1)) * self.scale).flatten(-2)), Past()
        positions = torch.arange(taps.shape[1], device=taps.device)[None]
        cos, sin = self.rotary(embeddings, positions)
        for step in range(steps):
            n = taps.shape[1] - step
            state = self.midlayer(embeddings[:, step:], state[:, :n], (cos[:, step:], sin[:, step:]), past)
            yield self.lm_head(self.norm(state))

    @torch.no_grad()
    def scale_to(self, taps: torch.Tensor, *, learnt: bool = False) -> None:
        """Scale taps to size 1 for any target. Large ones would drown the token's embedding, and `fc` would need
        another learning rate than the rest. A head that has `learnt` computes the same as before. In a new one, `fc`
        begins by passing on the latest tap, which is the input of a target's layer."""
        self.scale.copy_(taps.float().unflatten(-1, (3, -1)).square().mean((0, 1, 3))[:, None].rsqrt())
        if learnt:
            self.fc.weight.copy_((self.fc.weight.unflatten(1, (3, -1)) / self.scale).flatten(1))
        else:
            width = len(self.fc.weight)
            self.fc.weight.mul_(0.1)
            self.fc.weight[:, -width:] += torch.eye(width, device=self.fc.weight.device) / self.scale[-1]

    def widen(self, logits: torch.Tensor) -> torch.Tensor:
        """Return these logits over the target's vocabulary; tokens outside the draft vocabulary get -inf."""
        if self.kept is None:
            return logits
        wide = logits.new_full((*logits.shape[:-1], self.config.vocab_size), -torch.inf)
        wide[..., self.kept] = logits
        return wide

    def read(self, target: PreTrainedModel, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the head's inputs and the target's logits for (rows, n) tokens, at n - 1 indices. The inputs are the
        concatenated taps and the embeddings of the next tokens. The logits are for the tokens after those."""
        with torch.no_grad():
            out = target(input_ids=tokens, use_cache=False, output_hidden_states=True)
            taps = torch.cat([out.hidden_states[layer][:, :-1] for layer in self.layers], -1)
            return taps, target.get_input_embeddings()(tokens[:, 1:]), out.logits[:, 1:]


def check(folder: Path, target: PreTrainedModel) -> None:
    """Raise UnsupportedModel for a target whose layers a head's layer cannot imitate."""
    parts = [part for part in ("layers", "embed_tokens", "norm") if not hasattr(target.base_model, part)]
    rope = getattr(target.config, "rope_parameters", None) or {}
    settings = [key for key in ("rms_norm_eps", "intermediate_size") if not hasattr(target.config, key)]
    if lacking := [*parts, *settings, *([] if "rope_theta" in rope else ["rope_theta"])]:
        kind = target.config.model_type
        raise UnsupportedModel(f"{folder}: a head for model type {kind!r} is not supported: it has no {lacking[0]}")


def begin(target: PreTrainedModel, kept: torch.Tensor | None) -> Head:
    """Return an untrained head with the target's last layer, last norm and output embedding."""
    table = target.get_output_embeddings().weight.detach()
    table = table if kept is None else table[kept]
    head = Head(describe(target.config, len(table)), kept)
    with torch.no_grad():
        head.lm_head.weight.copy_(table)
        head.norm.weight.copy_(_weight_of(target.base_model.norm))
        _begin_as(head.midlayer, target.base_model.layers[-1])
    return head


def continued(target: PreTrainedModel, folder: Path, target_folder: Path) -> Head:
    """Return the head in a folder, to be trained further. Raises UnsupportedModel if it has parts that `Head` lacks."""
    read = heads.read(folder, target_folder)
    layer, config = read.of, describe(target.config, read.of.vocab_size)
    if read.norms or layer.normed_residual or layer.normed_output:
        raise UnsupportedModel(f"{folder}: a head with norms of its own cannot be trained further: start without it")
    config.num_attention_heads, config.num_key_value_heads = layer.heads, layer.kv_heads
    config.head_dim, config.intermediate_size, config.rms_norm_eps = layer.head_dim, layer.inner, layer.eps
    config.eagle_config[AUX_LAYERS] = [tapped - 1 for tapped in read.taps]
    head = Head(config, None if read.ids is None else torch.from_numpy(read.ids).long())
    if not np.allclose(layer.frequencies, head.rotary.inv_freq, rtol=1e-5) or len(read.taps) != 3:
        raise UnsupportedModel(f"{folder}: its taps or rotary positions are not those of a head made here")
    weights = {"fc.weight": read.fc, **layer.weights}
    with torch.no_grad():
        for name, own in head.named_parameters():
            theirs = name if name.startswith(("fc", "lm_head")) else f"model.{name}"
            own.copy_(torch.from_numpy(floats(weights[theirs.replace("midlayer", "layers.0")])))
    return head


def _begin_as(own: Layer, layer: nn.Module) -> None:
    """Copy a target's layer where its parts have the same names and sizes. The target's layer reads only states; the
    head's layer reads an embedding with each."""
    theirs = dict(layer.named_parameters())
    for name, weight in own.named_parameters():
        given, width = theirs.get(name), weight.shape[-1] // 2
        if given is None or weight.ndim != 2:
            continue
        if given.shape == weight.shape:
            weight.copy_(given)
        elif given.shape == (weight.shape[0], width):
            weight[:, width:] = given
            weight[:, :width] *= 0.5
    before_mlp = "post_attention_layernorm"
    if hasattr(layer, "post_feedforward_layernorm"):  # Gemma has norms after attention and MLP as well
        before_mlp = "pre_feedforward_layernorm"
    for norm, name in ((own.hidden_norm, "input_layernorm"), (own.post_attention_layernorm, before_mlp)):
        if (given := theirs.get(f"{name}.weight")) is not None and given.shape == norm.weight.shape:
            norm.weight.copy_(_weight_of(layer.get_submodule(name)))


def _weight_of(norm: nn.Module) -> torch.Tensor:
    """Return the factors that a norm applies: some norms add 1 to their weights."""
    found: torch.Tensor = norm(torch.ones_like(norm.get_parameter("weight")))
    return found


def to_bytes(name: str, matrix: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return a matrix as int8, with the largest number of each row at 127, and its rows' scales."""
    scales = matrix.float().abs().amax(1, keepdim=True).clamp(min=1e-12) / 127
    return {name: (matrix / scales).round().to(torch.int8), f"{name}{stored.SCALES}": scales}


def widen(folder: Path, out: Path) -> None:
    """Write a head with int8 matrices in bf16, as other systems read it. Raises SettingError if it has no such
    matrix."""
    matrices = [name for name, each in stored.scaled(stored.tensors([folder / WEIGHTS])).items() if each.scales]
    if not matrices:
        raise SettingError(f"{folder} has no matrix in bytes: other systems can read it already")
    tensors = load_file(folder / WEIGHTS)
    for name in matrices:
        tensors[name] = (tensors[name] * tensors.pop(f"{name}{stored.SCALES}")).to(torch.bfloat16)
    with architecture.staged(out) as staging:
        for file in folder.iterdir():
            if file.is_file() and file.suffix != ".toml":  # a profile holds its own folder's path
                shutil.copyfile(file, staging / file.name)
        save_file(tensors, staging / WEIGHTS, {"format": "pt"})


@torch.no_grad()
def round_to_bytes(head: Head) -> None:
    """Round the head's weights as if its matrices were written as int8 and read again."""
    for name, weight in head.named_parameters():
        if weight.ndim == 2:
            scale = head.scale.repeat_interleave(weight.shape[1] // 3).to(weight) if name == "fc.weight" else 1.0
            matrix, scales = to_bytes(name, weight * scale).values()
            weight.copy_(matrix * scales / scale)


def save(head: Head, folder: Path, *, in_bytes: bool = False) -> None:
    """Write `config.json` and `model.safetensors` into the folder, in bf16 or with int8 matrices."""
    weights = {name: value.detach() for name, value in head.named_parameters()}
    weights["fc.weight"] = (weights["fc.weight"].unflatten(1, (3, -1)) * head.scale).flatten(1)
    tensors: dict[str, torch.Tensor] = {}
    for name, value in weights.items():
        if in_bytes and value.ndim == 2:
            tensors |= to_bytes(name, value)
        else:
            tensors[name] = value.to(torch.bfloat16).contiguous()
    if head.kept is not None:
        known = torch.zeros(head.config.vocab_size, dtype=torch.bool)
        known[head.kept] = True
        tensors |= {"d2t": head.kept - torch.arange(len(head.kept)), "t2d": known}
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    config = head.config.to_dict() | {"dtype": "bfloat16"}
    rope = config["rope_parameters"]
    config |= {"rope_theta": rope["rope_theta"], "rope_scaling": None if rope["rope_type"] == "default" else rope}
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
