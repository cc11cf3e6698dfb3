"""Heads of random weights in both published forms, and what they compute by the formula, a text at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional
from transformers import AutoModelForCausalLM

from covey.models.loading import quiet

TARGET: dict[str, Any] = {"num_hidden_layers": 6, "tie_word_embeddings": True}  # of `tiny_models.build`
WIDTH, HEADS, KV_HEADS, DIM, INNER, VOCAB, EPS = 32, 4, 2, 8, 48, 97, 1e-6
TAPS = (2, 3, 4)  # before these layers of the target: ids that differ from either form's own choice for six layers

Pick = Callable[[torch.Tensor, int], int]


def likeliest(logits: torch.Tensor, _position: int) -> int:
    return int(logits.argmax())


def build(folder: Path, *, nested: bool = False, known: Sequence[int] = (), **changes: Any) -> Path:
    """A head for the tiny llama of six layers. `known`: the target's ids of a smaller vocabulary."""
    generator = torch.Generator().manual_seed(5)
    layer = "layers.0." if nested else "midlayer."
    shapes = {
        "fc.weight": (WIDTH, 3 * WIDTH),
        f"{layer}self_attn.q_proj.weight": (HEADS * DIM, 2 * WIDTH),
        f"{layer}self_attn.k_proj.weight": (KV_HEADS * DIM, 2 * WIDTH),
        f"{layer}self_attn.v_proj.weight": (KV_HEADS * DIM, 2 * WIDTH),
        f"{layer}self_attn.o_proj.weight": (WIDTH, HEADS * DIM),
        f"{layer}mlp.gate_proj.weight": (INNER, WIDTH),
        f"{layer}mlp.up_proj.weight": (INNER, WIDTH),
        f"{layer}mlp.down_proj.weight": (WIDTH, INNER),
        "lm_head.weight": (len(known) or VOCAB, WIDTH),
    }
    weights = {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in shapes.items()}
    for name in (f"{layer}input_layernorm", f"{layer}hidden_norm", f"{layer}post_attention_layernorm", "norm"):
        weights[f"{name}.weight"] = 1 + 0.3 * torch.randn(WIDTH, generator=generator)
    if '"norm_before_fc": true' in json.dumps(changes):
        weights["input_norm.weight"] = 1 + 0.3 * torch.randn(3 * WIDTH, generator=generator)
    if changes.get("fc_norm"):
        weights |= {f"fc_norm.{tap}.weight": 1 + 0.3 * torch.randn(WIDTH, generator=generator) for tap in range(3)}
    if known:
        weights["d2t"] = torch.tensor(known) - torch.arange(len(known))
        weights["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill_(0, torch.tensor(known), True)
    decoder = {
        "model_type": "llama",
        "hidden_size": WIDTH,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": DIM,
        "intermediate_size": INNER,
        "num_hidden_layers": 1,
        "rms_norm_eps": EPS,
        "rope_theta": 10000.0,
        "max_position_embeddings": 256,
        "vocab_size": VOCAB,
        "hidden_act": "silu",
    }
    sizes = {"draft_vocab_size": len(known) or VOCAB}
    if nested:
        ids: dict[str, Any] = {"eagle_aux_hidden_state_layer_ids": list(TAPS)}
        config = {"architectures": ["Eagle3Speculator"], "speculators_config": {}, "transformer_layer_config": decoder}
    else:
        ids = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [tap - 1 for tap in TAPS]}}
        config = {"architectures": ["LlamaForCausalLMEagle3"], **decoder}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config | sizes | ids | changes))
    save_file(weights, folder / "model.safetensors")
    return folder


class Formula:
    """The head in `folder` by its definition, in float32, without a cache."""

    def __init__(
        self, folder: Path, target: Path, *, normed_residual: bool = False, normed_output: bool = False
    ) -> None:
        found = load_file(folder / "model.safetensors")
        config = json.loads((folder / "config.json").read_text())
        nested = "speculators_config" in config
        ids = (config if nested else config["eagle_config"])["eagle_aux_hidden_state_layer_ids"]
        decoder = config["transformer_layer_config"] if nested else config
        self._dim, self._theta, self._eps = (decoder[key] for key in ("head_dim", "rope_theta", "rms_norm_eps"))
        self._taps = [each if nested else each + 1 for each in ids]
        self._w = {name.replace("midlayer.", "").replace("layers.0.", ""): each.float() for name, each in found.items()}
        self._normed_residual, self._normed_output = normed_residual, normed_output
        with quiet():
            self._target = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
        self._embedding = self._target.get_input_embeddings().weight.detach()
        known = found.get("d2t")
        self.ids = np.arange(len(self._embedding)) if known is None else (known + torch.arange(len(known))).numpy()

    @torch.inference_mode()
    def states(self, tokens: Sequence[int]) -> torch.Tensor:
        """The target's states of a text's positions."""
        hidden = self._target(torch.tensor([list(tokens)]), output_hidden_states=True).hidden_states
        taps = torch.cat([hidden[tap][0] for tap in self._taps], dim=-1)  # the n-th is what layer n reads
        if "input_norm.weight" in self._w:
            taps = self._norm(taps, "input_norm")
        if "fc_norm.0.weight" in self._w:
            taps = torch.cat([self._norm(x, f"fc_norm.{n}") for n, x in enumerate(taps.chunk(3, dim=-1))], -1)
        return taps @ self._w["fc.weight"].T

    @torch.inference_mode()
    def step(self, states: torch.Tensor, tokens: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits and outputs at all indices: state i stands beside token i + 1."""
        embedded = self._norm(self._embedding[torch.tensor(list(tokens[1:]))], "input_layernorm")
        beside = self._norm(states, "hidden_norm")
        both = torch.cat([embedded, beside], dim=-1)
        query, key, value = (
            (both @ self._w[f"self_attn.{name}_proj.weight"].T).view(len(both), -1, self._dim).transpose(0, 1)
            for name in "qkv"
        )
        frequencies = self._theta ** -(torch.arange(0, self._dim, 2) / self._dim)
        at = torch.arange(len(both), dtype=torch.float32)[:, None] * frequencies
        cos, sin = torch.cat([at, at], -1).cos(), torch.cat([at, at], -1).sin()
        half = self._dim // 2
        query, key = (x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin for x in (query, key))
        group = len(query) // len(key)
        seen = functional.scaled_dot_product_attention(
            query, key.repeat_interleave(group, 0), value.repeat_interleave(group, 0), is_causal=True
        )
        x = beside if self._normed_residual else states
        x = x + seen.transpose(0, 1).reshape(len(both), -1) @ self._w["self_attn.o_proj.weight"].T
        inner = self._norm(x, "post_attention_layernorm")
        gate, up = (inner @ self._w[f"mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + (functional.silu(gate) * up) @ self._w["mlp.down_proj.weight"].T
        normed = self._norm(x, "norm")
        return normed @ self._w["lm_head.weight"].T, normed if self._normed_output else x

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.rms_norm(x, x.shape[-1:], self._w[f"{name}.weight"], self._eps)

    def chain(self, tokens: Sequence[int], states: torch.Tensor, depth: int, pick: Pick = likeliest) -> list[int]:
        """What it drafts behind a text, of whose positions but the last these are the states. `pick` takes the token of
        a position by its logits."""
        text, found = list(tokens), list[int]()
        for _ in range(depth):
            logits, outputs = self.step(states, text)
            found.append(int(self.ids[pick(logits[-1], len(text))]))
            text.append(found[-1])
            states = torch.cat([states, outputs[-1:]])
        return found

    def beam(self, tokens: Sequence[int], states: torch.Tensor, depth: int, width: int) -> list[list[int]]:
        """The paths of a greedy beam, level by level, the likeliest of a level first."""
        level: list[tuple[float, list[int], torch.Tensor]] = [(0.0, [], states)]
        found = list[list[int]]()
        for _ in range(depth):
            longer = []
            for score, path, seen in level:
                logits, outputs = self.step(seen, [*tokens, *path])
                best = logits[-1].log_softmax(-1).topk(width)
                after = torch.cat([seen, outputs[-1:]])
                for value, at in zip(best.values.tolist(), best.indices.tolist()):
                    longer.append((score + value, [*path, int(self.ids[at])], after))
            level = sorted(longer, key=lambda each: -each[0])[:width]
            found += [path for _, path, _ in level]
        return found


def words(states: torch.Tensor) -> npt.NDArray[np.uint16]:
    """States as they are shipped, in bfloat16."""
    return states.to(torch.bfloat16).view(torch.uint16).numpy()


def floats(words: npt.NDArray[np.uint16]) -> torch.Tensor:
    """What a head reads of shipped states."""
    return torch.from_numpy(words).view(torch.bfloat16).float()
