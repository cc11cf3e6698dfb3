"""The shapes of synthetic targets, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import LlamaConfig, PretrainedConfig, Qwen2Config

from covey.contracts.errors import SettingError

KINDS: Mapping[str, type[PretrainedConfig]] = {"llama": LlamaConfig, "qwen2": Qwen2Config}
END_OF_TEXT = 0  # the id in the bundled tokenizer, which every pair is saved with
SPECIAL = 2  # ids of that tokenizer without a text: end of text and padding
SHARE_OF_COST = 0.1  # a drafter's default cost, as a share of the target's

COMMON = {
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,  # a tied head would answer every token with itself; a separate one costs the same
    "bos_token_id": END_OF_TEXT,
    "eos_token_id": END_OF_TEXT,
    "pad_token_id": None,
}
SIZES: Mapping[str, dict[str, Any]] = {
    # for tests
    "tiny": {"model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 8,
             "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512},
    # as deep as the bundled target, 15 M
    "small": {"model_type": "llama", "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 16,
              "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 4096},
    # Qwen2-0.5B's
    "0.5b": {"model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
             "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 32000},
    # Llama-3.2-1B's
    "1b": {"model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
           "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000},
    # Qwen2-7B's: heads of 128, four of keys and values
    "7b": {"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
           "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 32000},
}  # fmt: skip


def shape(size: str) -> PretrainedConfig:
    """Return the configuration of a named size."""
    if size not in SIZES:
        raise SettingError(f"size: got {size!r}, allowed: {', '.join(SIZES)}")
    settings = COMMON | SIZES[size]
    return KINDS[settings["model_type"]](**settings)


def default_layers(config: PretrainedConfig) -> int:
    """Return how many layers give a drafter of about a tenth of the target's cost. Cost is counted in weights that a
    token reads: head and layers, not the embedding."""
    width, middle = config.hidden_size, config.intermediate_size
    head = getattr(config, "head_dim", None) or width // config.num_attention_heads
    heads = 2 * config.num_attention_heads + 2 * config.num_key_value_heads
    layer, last = width * head * heads + 3 * width * middle, width * config.vocab_size
    wanted = SHARE_OF_COST * (config.num_hidden_layers * layer + last)
    layers: int = min(max(1, round((wanted - last) / layer)), config.num_hidden_layers - 1)
    return layers


def check_layers(config: PretrainedConfig, layers: int) -> None:
    """Raise SettingError unless the drafter is a proper part of the target."""
    if not 1 <= layers < config.num_hidden_layers:
        raise SettingError(f"layers: got {layers}, allowed: 1 to {config.num_hidden_layers - 1}")
