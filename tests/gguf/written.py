"""GGUF files of tiny random models, written as llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from gguf import GGUFWriter
from gguf.constants import GGMLQuantizationType as Kind
from gguf.quants import quantize
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.gemma3 import Gemma3TextConfig
from transformers.models.llama import LlamaConfig
from transformers.models.qwen2 import Qwen2Config
from transformers.models.qwen3 import Qwen3Config

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
OF_GEMMA = NAMES | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
CONFIGS = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config, "gemma3": Gemma3TextConfig}
BYTES = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324))]
TOKENS = ["<end>", "<begin>", *BYTES, "he", "ll", "hell"]
BYTE_LEVEL: dict[str, Any] = {
    "model": "gpt2",
    "pre": "gpt-2",
    "tokens": TOKENS,
    "token_type": [3, 3, *[1] * (len(TOKENS) - 2)],
    "merges": ["h e", "l l", "he ll"],
    "bos_token_id": 1,
    "eos_token_id": 0,
}


def model(architecture: str, **settings: Any) -> PreTrainedModel:
    """Return a model whose weights, norms included, are random numbers of bfloat16."""
    own = {"layer_types": None, "head_dim": 16} if architecture == "gemma3" else {}
    layers = 7 if architecture == "gemma3" else 2
    given = {"vocab_size": len(TOKENS), "num_hidden_layers": layers, "max_position_embeddings": 512, **SIZES, **own}
    config = CONFIGS[architecture](**(given | {"bos_token_id": 1, "eos_token_id": 0} | settings))
    torch.manual_seed(7)
    made = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for weight in made.parameters():
        weight.data = (torch.randn_like(weight) * 0.3 + (weight.dim() == 1)).bfloat16().float()
    return made.eval()


def paired(rows: NDArray[Any], heads: int) -> NDArray[Any]:
    """Return the rows of Q or K in llama.cpp's order: each row of a head's first half before its partner."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def tensors(architecture: str, of: PreTrainedModel) -> dict[str, NDArray[np.float32]]:
    """Return a model's tensors by their names in a file, in the file's order of rows."""
    names, found = OF_GEMMA if architecture == "gemma3" else NAMES, {}
    for name, weight in of.state_dict().items():
        if name == "lm_head.weight" and of.config.tie_word_embeddings:
            continue
        stem, _, last = name.rpartition(".")
        place = stem.removeprefix("model.layers.").split(".", 1) if ".layers." in name else None
        own = f"blk.{place[0]}.{names[place[1]]}" if place else names[stem]
        numbers = weight.numpy()
        if architecture == "llama" and own.endswith(("attn_q", "attn_k")):
            heads = of.config.num_attention_heads if own.endswith("q") else of.config.num_key_value_heads
            numbers = paired(numbers, heads)
        if architecture == "gemma3" and own.endswith("norm"):
            numbers = numbers + 1
        found[f"{own}.{last}"] = numbers
    return found


def fields(architecture: str, of: PreTrainedModel) -> dict[str, Any]:
    config = of.config
    own = {"attention.sliding_window": config.sliding_window} if architecture == "gemma3" else {}
    return {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.freq_base": 10_000.0,
        **own,
    }


def tiny(
    path: Path,
    architecture: str = "llama",
    of: PreTrainedModel | None = None,
    said: Mapping[str, Any] = MappingProxyType({}),
    numbers: Mapping[str, NDArray[Any]] = MappingProxyType({}),
    vocabulary: Mapping[str, Any] = BYTE_LEVEL,
    kind: Kind = Kind.F32,
    **general: Any,
) -> Path:
    """Write the file of a model, with these fields and tensors in place of its own: a field that is None is left out.
    Matrices are of type `kind`, bytes are written as they are."""
    writer, of = GGUFWriter(path, architecture), of or model(architecture)
    for name, value in (fields(architecture, of) | dict(said)).items():
        _add(writer, f"{architecture}.{name}", value)
    for name, value in vocabulary.items():
        _add(writer, "tokenizer.chat_template" if name == "chat_template" else f"tokenizer.ggml.{name}", value)
    for name, value in general.items():
        _add(writer, name.replace("__", "."), value)
    for name, array in (tensors(architecture, of) | dict(numbers)).items():
        own = kind if array.ndim > 1 else Kind.F32
        raw = array if array.dtype == np.uint8 else quantize(np.ascontiguousarray(array), own)
        writer.add_tensor(name, raw, raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: GGUFWriter, name: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    elif isinstance(value, str):
        writer.add_string(name, value)
    elif isinstance(value, Sequence):
        writer.add_array(name, list(value))
