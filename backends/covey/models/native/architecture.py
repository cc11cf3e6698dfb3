"""Reads the architecture from a model folder, as far as a pass needs it, or raises an error that names the obstacle.

It imports neither torch nor transformers. A folder that relies on a family's defaults is refused, because guesses may
be wrong: the modules of transformers serve it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.contracts.errors import SettingError, UnsupportedModel
from covey.models import refusals, stored
from covey.models.stored import Stored

# Model types that this runtime computes: RMS norms, rotary positions, grouped heads, gated feed-forwards, in every
# layer. The kernels for GPUs have a list of their own.
FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
ROPES = ("default", "linear", "llama3", "yarn")  # kinds that do not change with a text's length
# The keys of config.json and of its rotary settings that this runtime computes, then those that change no pass.
_WORDS = (
    "attention_bias attention_factor beta_fast beta_slow eos_token_id factor head_dim hidden_act hidden_size "
    "high_freq_factor intermediate_size layer_types low_freq_factor max_position_embeddings max_window_layers mlp_bias "
    "model_type mscale mscale_all_dim num_attention_heads num_hidden_layers num_key_value_heads "
    "original_max_position_embeddings partial_rotary_factor rms_norm_eps rope_parameters rope_scaling rope_theta "
    "rope_type sliding_window tie_word_embeddings truncate type use_sliding_window vocab_size "
    "_name_or_path architectures attention_dropout auto_map bos_token_id chunk_size_feed_forward dtype id2label "
    "initializer_range is_encoder_decoder label2id max_length max_sequence_length output_attentions "
    "output_hidden_states pad_token_id pretraining_tp problem_type return_dict torch_dtype transformers_version "
    "transformers_weights transformers.js_config use_cache"
)
_KEYS = frozenset(_WORDS.split())
_VALUES = {"is_llama_config": True, "rope_interleaved": False, "use_mrope": False}  # these values change nothing


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder of RMS norms, rotary positions, grouped heads and gated feed-forwards."""

    vocab_size: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    max_positions: int
    end_ids: tuple[int, ...]
    tied: bool  # the embedding is also the head if the files hold no other
    frequencies: tuple[float, ...]  # of the rotary embedding
    factor: float  # scales the rotary sines and cosines
    inner: int  # width of the feed-forward
    weights: Mapping[str, Stored]
    inputs: int = 1  # 2 for a head, whose layer reads a token's embedding and the target's state before that token
    normed_residual: bool = False  # the layer adds to the normed state
    normed_output: bool = False  # a later step reads the normed output in place of a state


def read(folder: Path) -> Architecture:
    """Return the architecture of the model in a folder. Raises UnsupportedModel for other architectures, SettingError
    if the folder holds no model."""
    refusals.by_files(folder)
    config = refusals.described(folder)
    refusals.by_config(folder, config.get)
    refusals.by_values(folder, config)
    rope = _said_rope(config)
    said = {**config, **(rope if isinstance(rope, dict) else {})}
    strange = [key for key, value in said.items() if key not in _KEYS and value is not _VALUES.get(key)]
    if strange and config.get("model_type") in FAMILIES:
        raise UnsupportedModel(f"{folder}: this runtime does not know the key {strange[0]} of config.json")
    found = of(folder, config, stored.tensors(refusals.weight_files(folder)))
    _check_tensors(folder, config, found)
    return found


def of(folder: Path, config: Mapping[str, Any], weights: Mapping[str, Stored], *, inputs: int = 1) -> Architecture:
    """Return the architecture that a configuration and a folder's weights describe."""
    try:
        reason = _why_not(config)
        if reason:
            raise UnsupportedModel(f"{folder}: the native runtime serves no model with {reason}")
        heads, width, eps = config["num_attention_heads"], config["hidden_size"], float(config["rms_norm_eps"])
        layers, tokens = config["num_hidden_layers"], config["vocab_size"]
        dim = config.get("head_dim") or width // heads
        frequencies, factor = rotary(config, dim)
    except (ArithmeticError, KeyError, TypeError, ValueError) as error:
        raise SettingError(f"{folder}: config.json cannot be read: {error!r}: copy it again") from error
    try:
        query, key = (weights[f"model.layers.0.self_attn.{name}_proj.weight"].shape[0] for name in "qk")
        vocab = weights[EMBEDDING].shape[0]
        inner = weights["model.layers.0.mlp.down_proj.weight"].shape[1]
    except (KeyError, IndexError) as error:
        raise UnsupportedModel(f"{folder}: the native runtime needs a weight that is missing: {error}") from error
    kv_heads = config.get("num_key_value_heads") or heads
    if (heads * dim, kv_heads * dim, tokens) != (query, key, vocab):
        said = f"num_attention_heads {heads}, num_key_value_heads {kv_heads}, head_dim {dim}, vocab_size {tokens}"
        raise SettingError(
            f"{folder}: config.json and the weights are not of one model: {said}, but the weights have {query} rows "
            f"of q_proj, {key} of k_proj, {vocab} tokens; copy both from one"
        )
    return Architecture(
        vocab_size=vocab,
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=dim,
        eps=eps,
        max_positions=config["max_position_embeddings"],
        end_ids=tuple(i for i in refusals.end_ids(folder, config.get("eos_token_id")) if 0 <= i < vocab),
        tied=bool(config.get("tie_word_embeddings")),
        frequencies=tuple(frequencies.tolist()),
        factor=factor,
        inner=inner,
        weights=weights,
        inputs=inputs,
    )


def _check_tensors(folder: Path, config: Mapping[str, Any], of: Architecture) -> None:
    """Raise SettingError if a tensor is missing or has another shape than the configuration says. Raise
    UnsupportedModel for a bias or a norm that the family does not have."""
    wrong, wanted = f"{folder}: config.json and the weights are not of one model", set()
    for name, shape in _tensors(config, of):
        wanted.add(name)
        if name not in of.weights:
            raise SettingError(f"{wrong}, which lack {name}: copy both from one")
        tensor = of.weights[name]
        if tensor.shape != shape:
            there = f"{name} of {tensor.file.name} is {list(tensor.shape)}"
            raise SettingError(f"{wrong}: {there}, allowed by config.json: {list(shape)}; copy both from one")
    for name in of.weights:
        if name.startswith("model.layers.") and name.endswith((".bias", "q_norm.weight")) and name not in wanted:
            raise UnsupportedModel(f"{wrong}, which have {name}: copy both from one")


def _tensors(config: Mapping[str, Any], of: Architecture) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the names and shapes of all tensors that a pass reads."""
    family, width, inner = config["model_type"], of.width, config["intermediate_size"]
    query, key = of.heads * of.head_dim, of.kv_heads * of.head_dim
    by_config = family in ("llama", "qwen3") and bool(config.get("attention_bias"))
    attention = by_config or family == "qwen2"
    feed_forward = family == "llama" and bool(config.get("mlp_bias"))
    products = {  # rows, columns, and whether it has a bias
        "self_attn.q_proj": (query, width, attention),
        "self_attn.k_proj": (key, width, attention),
        "self_attn.v_proj": (key, width, attention),
        "self_attn.o_proj": (width, query, by_config),
        "mlp.gate_proj": (inner, width, feed_forward),
        "mlp.up_proj": (inner, width, feed_forward),
        "mlp.down_proj": (width, inner, feed_forward),
    }
    yield EMBEDDING, (of.vocab_size, width)
    yield "model.norm.weight", (width,)
    if not of.tied:
        yield HEAD, (of.vocab_size, width)
    for layer in range(of.layers):
        at = f"model.layers.{layer}"
        yield f"{at}.input_layernorm.weight", (width,)
        yield f"{at}.post_attention_layernorm.weight", (width,)
        if family == "qwen3":
            yield f"{at}.self_attn.q_norm.weight", (of.head_dim,)
            yield f"{at}.self_attn.k_norm.weight", (of.head_dim,)
        for name, (rows, columns, biased) in products.items():
            yield f"{at}.{name}.weight", (rows, columns)
            if biased:
                yield f"{at}.{name}.bias", (rows,)


def _why_not(config: Mapping[str, Any]) -> str:
    if config.get("model_type") not in FAMILIES:
        return f"model type {config.get('model_type')!r}; it serves {', '.join(sorted(FAMILIES))}"
    missing = [
        key
        for key in ("rms_norm_eps", "max_position_embeddings", "hidden_act", "intermediate_size")
        if config.get(key) is None
    ]
    if missing:
        return f"a config.json without {missing[0]}"
    if config["hidden_act"] != "silu":
        return f"activation {config['hidden_act']!r}"
    used = config["model_type"] == "mistral" or config.get("use_sliding_window", True)  # mistral does not read the key
    window = config.get("sliding_window") if used else None
    if "sliding_attention" in (config.get("layer_types") or ()) or (window and config.get("layer_types") is None):
        return "a sliding window"
    kind = _rope(config)["rope_type"]
    if kind not in ROPES:
        return f"rotary embedding {kind!r}"
    if _rope(config).get("partial_rotary_factor", 1.0) != 1.0:
        return "a partial rotary embedding"
    return ""


def _said_rope(config: Mapping[str, Any]) -> Any:
    """Return the settings of the rotary embedding as config.json has them. transformers prefers the old name."""
    return config.get("rope_scaling") or config.get("rope_parameters")


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the rotary embedding, from old and new configurations."""
    rope = dict(_said_rope(config) or {})
    rope.setdefault("rope_type", rope.get("type") or "default")
    rope["rope_theta"] = rope.get("rope_theta") or config.get("rope_theta") or 10_000.0
    original = config.get("original_max_position_embeddings") or rope.get("original_max_position_embeddings")
    rope["original_max_position_embeddings"] = original or config.get("max_position_embeddings")
    if config.get("partial_rotary_factor") is not None:
        rope.setdefault("partial_rotary_factor", config["partial_rotary_factor"])
    return rope


def rotary(config: Mapping[str, Any], dim: int) -> tuple[npt.NDArray[np.float32], float]:
    """Return frequencies for half a head, and the factor of sines and cosines: transformers' definitions, in
    float64."""
    rope = _rope(config)
    theta, kind = float(rope["rope_theta"]), rope["rope_type"]
    plain = theta ** -(np.arange(0, dim, 2) / dim)
    scaled, factor = plain, 1.0
    if kind == "linear":
        scaled = plain / rope["factor"]
    elif kind == "llama3":
        scaled = _llama3(plain, rope)
    elif kind == "yarn":
        scaled, factor = _yarn(plain, rope, dim, config["max_position_embeddings"])
    return scaled.astype(np.float32), factor


def _llama3(plain: npt.NDArray[np.float64], rope: Mapping[str, Any]) -> npt.NDArray[np.float64]:
    """Return frequencies with long waves stretched, short ones unchanged, and those between blended."""
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    turns = rope["original_max_position_embeddings"] * plain / (2 * math.pi)
    share = np.clip((turns - low) / (high - low), 0.0, 1.0)
    blended: npt.NDArray[np.float64] = (1 - share) * plain / rope["factor"] + share * plain
    return blended


def _yarn(
    plain: npt.NDArray[np.float64], rope: Mapping[str, Any], dim: int, most: int
) -> tuple[npt.NDArray[np.float64], float]:
    original, theta = rope["original_max_position_embeddings"], float(rope["rope_theta"])
    stretch = rope.get("factor") or most / original

    def scale(by: float) -> float:
        return 0.1 * by * math.log(stretch) + 1.0 if stretch > 1 else 1.0

    def dimension(turns: float) -> float:
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(rope.get("beta_fast") or 32), dimension(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = np.clip((np.arange(dim // 2) - low) / ((high - low) or 0.001), 0.0, 1.0)
    both = rope.get("mscale"), rope.get("mscale_all_dim")
    factor = rope.get("attention_factor")
    if factor is None:
        factor = scale(both[0]) / scale(both[1]) if both[0] and both[1] else scale(1.0)
    return plain / stretch * ramp + plain * (1 - ramp), float(factor)
