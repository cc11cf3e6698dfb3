"""Tiny random models of several families, saved as model folders, and a reader that pages any of them at random."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from safetensors.torch import load_file, save_file

from covey.contracts.types import Ints
from covey.models.lanes import Lanes, Pass
from covey.models.loading import quiet
from covey.models.model import PagedModel
from covey.models.native.model import NativeModel

_SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}
_GROUPED = _SMALL | {"num_key_value_heads": 2}
_WINDOWED = _GROUPED | {"head_dim": 8, "sliding_window": 12}

_NORMS = tuple(f"{n}.weight" for n in ("ln_f", "ln_1", "ln_2", "ln_attn", "ln_mlp", "norm_1", "norm_2", "norm_f"))

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", _GROUPED | {"tie_word_embeddings": True}),
    "qwen2": ("Qwen2Config", _GROUPED),
    "qwen3": ("Qwen3Config", _GROUPED | {"head_dim": 16}),
    "mistral": ("MistralConfig", _WINDOWED),
    "gemma2": ("Gemma2Config", _WINDOWED | {"query_pre_attn_scalar": 8, "tie_word_embeddings": False}),
    "gemma3": (
        "Gemma3TextConfig",
        _WINDOWED | {"query_pre_attn_scalar": 8, "tie_word_embeddings": False, "sliding_window_pattern": 2},
    ),
    "ministral3": (
        "Ministral3Config",
        _GROUPED
        | {
            "head_dim": 8,
            "sliding_window": None,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "llama_4_scaling_beta": 2.0,
            },
        },
    ),
    "smollm3": ("SmolLM3Config", _GROUPED | {"no_rope_layers": [1, 1, 0]}),
    "phi3": ("Phi3Config", _GROUPED | {"sliding_window": None}),
    "gpt_neox": ("GPTNeoXConfig", _SMALL),
}
_EXPERTS = _GROUPED | {"num_experts_per_tok": 2}
_GPT2 = {
    "vocab_size": 97,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 256,
    "eos_token_id": 1,
    "tie_word_embeddings": False,
}

# as above, but too many for every test
MORE: dict[str, tuple[str, dict[str, Any]]] = {
    "granite": (
        "GraniteConfig",
        _GROUPED
        | {
            "logits_scaling": 3.0,
            "embedding_multiplier": 2.0,
            "residual_multiplier": 0.7,
            "attention_multiplier": 0.3,
        },
    ),
    "cohere": ("CohereConfig", _GROUPED | {"logit_scale": 0.3, "use_qk_norm": True}),
    "cohere2": ("Cohere2Config", _WINDOWED | {"logit_scale": 0.3, "num_hidden_layers": 4}),
    "nemotron": ("NemotronConfig", _GROUPED),
    "stablelm": ("StableLmConfig", _GROUPED | {"qk_layernorm": True, "use_parallel_residual": True}),
    "gpt_oss": ("GptOssConfig", _WINDOWED | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "gemma": ("GemmaConfig", _GROUPED | {"head_dim": 8}),
    "phi": ("PhiConfig", _GROUPED),
    "olmo": ("OlmoConfig", _GROUPED),
    "olmo2": ("Olmo2Config", _GROUPED),
    "olmo3": ("Olmo3Config", _GROUPED | {"sliding_window": 12, "num_hidden_layers": 4}),
    "starcoder2": ("Starcoder2Config", _GROUPED | {"sliding_window": 12}),
    "exaone4": ("Exaone4Config", _WINDOWED | {"sliding_window_pattern": 4, "num_hidden_layers": 4}),
    "glm": ("GlmConfig", _GROUPED | {"head_dim": 8}),
    "glm4": ("Glm4Config", _GROUPED | {"head_dim": 8}),
    "ernie4_5": ("Ernie4_5Config", _GROUPED | {"head_dim": 8}),
    "seed_oss": ("SeedOssConfig", _GROUPED | {"head_dim": 8}),
    "apertus": ("ApertusConfig", _GROUPED),
    "arcee": ("ArceeConfig", _GROUPED),
    "helium": ("HeliumConfig", _GROUPED | {"head_dim": 8}),
    "hunyuan_v1_dense": ("HunYuanDenseV1Config", _GROUPED | {"head_dim": 8}),
    "persimmon": ("PersimmonConfig", _SMALL),
    "gpt2": ("GPT2Config", _GPT2 | {"n_inner": 32}),
    "gpt_bigcode": ("GPTBigCodeConfig", _GPT2 | {"n_inner": 48}),
    "opt": ("OPTConfig", _SMALL | {"ffn_dim": 48, "word_embed_proj_dim": 32, "tie_word_embeddings": False}),
    "mixtral": ("MixtralConfig", _EXPERTS | {"num_local_experts": 4}),
    "qwen2_moe": (
        "Qwen2MoeConfig",
        _EXPERTS | {"num_experts": 4, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16},
    ),
    "qwen3_moe": ("Qwen3MoeConfig", _EXPERTS | {"num_experts": 4, "moe_intermediate_size": 16, "head_dim": 8}),
    "olmoe": ("OlmoeConfig", _EXPERTS | {"num_experts": 4}),
    "granitemoe": ("GraniteMoeConfig", _EXPERTS | {"num_local_experts": 4, "logits_scaling": 3.0}),
}
# Experts know no float64, and no shapes of theirs were found that make a row independent of others.
EXPERTS = {"mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe", "gpt_oss"}


def build(folder: Path, family: str, dtype: torch.dtype = torch.float32, seed: int = 0, **changes: Any) -> Path:
    """Save a random model of the family; `changes` overwrite configuration keys."""
    name, settings = (FAMILIES | MORE)[family]
    config = getattr(transformers, name)(**(settings | changes))
    torch.manual_seed(seed)
    with quiet():
        module = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
        with torch.no_grad():
            for key, weight in module.named_parameters():  # the stock initialisation repeats one token for ever
                scale = 1.5 * weight.shape[-1] ** -0.5 if weight.dim() > 1 else 0.2
                weight.copy_(torch.randn(weight.shape) * scale)
                normed = key.endswith("norm.weight") or (weight.dim() == 1 and key.endswith(_NORMS))
                if normed and not family.startswith("gemma"):
                    weight.add_(1.0)
        module.save_pretrained(folder)
    return folder


def padded(folder: Path, model: Path, size: int) -> Path:
    """The model with `size` outputs: it loses its last ones, or gets some that would win most draws."""
    shutil.copytree(model, folder)
    weights = load_file(folder / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight", "lm_head.bias"):
        if name in weights:
            rows = weights[name]
            more = 5 * rows[: max(0, size - len(rows))]
            weights[name] = torch.cat([rows[:size], more]).contiguous()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": size}))
    return folder


def generate(
    folder: Path, prompt: Ints, count: int, dtype: torch.dtype = torch.float64, attention: str = "eager"
) -> list[int]:
    """Greedy tokens of transformers' own loop."""
    with quiet(), torch.inference_mode():
        module = _generating(folder, dtype, attention)
        ids = torch.from_numpy(prompt.astype(np.int64))[None]
        found = module.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count)
    return [int(i) for i in found[0, len(prompt) :]]


@lru_cache(maxsize=1)  # a test asks for several rows of one folder
def _generating(folder: Path, dtype: torch.dtype, attention: str) -> Any:
    module = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation=attention)
    module.generation_config.eos_token_id = None
    return module


class Reader:
    """Rows of one model, each with blocks of its own scattered over the pool. Steps are (row, start, stop): compute
    positions start to stop of the row's tokens, in one pass with all other steps."""

    def __init__(self, model: PagedModel | NativeModel, rows: Sequence[Ints], seed: int = 0, room: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.model, self.rows = model, [np.asarray(row, np.int32) for row in rows]
        per_row = [-(-(len(row) + room) // model.block_size) for row in rows]
        blocks = rng.permutation(model.blocks)[: sum(per_row)].astype(np.int32)
        self.tables = np.split(blocks, np.cumsum(per_row)[:-1])

    def slots(self, row: int, start: int, stop: int) -> Ints:
        at = np.arange(start, stop)
        size = self.model.block_size
        return (self.tables[row][at // size] * size + at % size).astype(np.int32)

    def read(self, steps: Sequence[tuple[int, int, int]]) -> list[torch.Tensor]:
        """Logits of every step's tokens."""
        width = max(len(table) for table in self.tables)
        tables = np.stack([np.pad(self.tables[row], (0, width - len(self.tables[row]))) for row, _, _ in steps])
        sizes = [stop - start for _, start, stop in steps]
        tokens = np.concatenate([self.rows[row][start:stop] for row, start, stop in steps])
        positions = np.concatenate([np.arange(start, stop, dtype=np.int32) for _, start, stop in steps])
        slots = np.concatenate([self.slots(*step) for step in steps])
        lanes = Lanes(
            np.append(0, np.cumsum(sizes)).astype(np.int32), np.array([stop for _, _, stop in steps], np.int32), tables
        )
        logits = self.model.forward(Pass(tokens, positions, slots, lanes, np.arange(len(tokens), dtype=np.int32)))
        return list(torch.as_tensor(logits).clone().split(sizes))  # good until the next pass

    def tree(self, row: int, base: int, tokens: Ints, parents: Ints, spare: Ints, paths: bool) -> torch.Tensor:
        """Logits of a tree's nodes below the first `base` tokens of a row; node n's key goes to slot `spare[n]`. As
        one lane per root-to-leaf path, the first computing what several share, or one per node."""
        depth = np.zeros(len(tokens), np.int32)
        ancestors: list[list[int]] = []
        for node, parent in enumerate(parents):
            ancestors.append([*(ancestors[parent] if parent >= 0 else []), node])
            depth[node] = len(ancestors[node]) - 1
        ends = [n for n in range(len(tokens)) if n not in set(parents.tolist())] if paths else range(len(tokens))
        chains = [ancestors[end] for end in ends]
        done: set[int] = set()
        queries = []
        for chain in chains:
            queries.append([node for node in chain if node not in done] if paths else chain[-1:])
            done |= set(chain)
        lanes = Lanes(
            offsets=np.append(0, np.cumsum([len(q) for q in queries])).astype(np.int32),
            lengths=np.array([base + len(chain) for chain in chains], np.int32),
            tables=np.repeat(self.tables[row][None], len(chains), 0),
            queries=np.concatenate(queries).astype(np.int32),
            tail_offsets=np.append(0, np.cumsum([len(chain) for chain in chains])).astype(np.int32),
            tails=spare[np.concatenate(chains)].astype(np.int32),
        )
        out = np.arange(len(tokens), dtype=np.int32)
        logits = self.model.forward(Pass(tokens, base + depth, spare.astype(np.int32), lanes, out))
        return torch.as_tensor(logits).clone()

    def greedy(self, count: int, chunk: int, rng: np.random.Generator) -> list[list[int]]:
        """Extend every row by `count` greedy tokens: prompts in chunks of at most `chunk`, rows in random mixtures."""
        done = [0] * len(self.rows)
        prompts = [len(row) for row in self.rows]
        while any(len(row) < n + count for row, n in zip(self.rows, prompts)):
            steps = []
            for row, tokens in enumerate(self.rows):
                if len(tokens) < prompts[row] + count and rng.random() < 0.7:
                    steps.append((row, done[row], min(len(tokens), done[row] + int(rng.integers(1, chunk + 1)))))
            if not steps:
                continue
            for (row, _, stop), logits in zip(steps, self.read(steps)):
                done[row] = stop
                if stop == len(self.rows[row]):
                    self.rows[row] = np.append(self.rows[row], np.int32(int(logits[-1].argmax())))
        return [row[n:].tolist() for row, n in zip(self.rows, prompts)]


def prompts(rng: np.random.Generator, vocab: int, *lengths: int) -> list[npt.NDArray[np.int32]]:
    return [rng.integers(2, vocab, length).astype(np.int32) for length in lengths]
