"""Model families: the names, shapes and order of their tensors, and their config.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from covey.contracts.errors import SettingError, UnsupportedModel
from covey.gguf import rotary
from covey.gguf.file import Fields, GgufFile, Tensor
from covey.gguf.numbers import Weight

EMBEDDING, NORM, HEAD = "token_embd.weight", "output_norm.weight", "output.weight"
MOST = 1 << 24  # of a size in the configuration
PATTERN = 6  # of Gemma 3's layers, every sixth has full attention
LAYERS_OF_27B = 62  # Gemma 3 27B alone scales its queries by its width
_PLAIN_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_GEMMA_NORMS = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_KEYS = frozenset(
    {
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.layer_norm_rms_epsilon",
        "attention.value_length",
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "rope.dimension_count",
        "rope.freq_base",
        "vocab_size",
        *rotary.KEYS,
    }
)
_ZERO = frozenset({"expert_count", "expert_used_count"})  # of a model that is no mixture of experts
_IGNORED = frozenset({"tensor_data_layout"})  # old files of Llama carry it


@dataclass(frozen=True, slots=True)
class Family:
    """The way in which one architecture differs from others."""

    model_type: str
    class_name: str
    norms: Mapping[str, str] = field(default_factory=lambda: _PLAIN_NORMS)  # of a layer
    head_norms: Mapping[str, str] = field(default_factory=dict)  # of each head's queries and keys
    biases: tuple[str, ...] = ()  # matrices with one
    paired_rows: bool = False  # Q and K have llama.cpp's order of rotary pairs
    added_to_norms: float = 0.0
    rotary_base: float = 10_000.0  # where the file says none
    keys: frozenset[str] = frozenset()  # fields in addition to those of all families
    ignored: tuple[str, ...] = ()  # beginnings of fields about parts that are not in the file
    alternates: bool = False  # most layers have a sliding window and another rotary base


FAMILIES: Mapping[str, Family] = {
    "llama": Family("llama", "LlamaForCausalLM", paired_rows=True),
    "qwen2": Family("qwen2", "Qwen2ForCausalLM", biases=("attn_q", "attn_k", "attn_v")),
    "qwen3": Family("qwen3", "Qwen3ForCausalLM", head_norms=_HEAD_NORMS),
    "gemma3": Family(
        "gemma3_text",
        "Gemma3ForCausalLM",
        norms=_GEMMA_NORMS,
        head_norms=_HEAD_NORMS,
        added_to_norms=1.0,
        rotary_base=1_000_000.0,
        keys=frozenset({"attention.sliding_window", "rope.freq_base_swa", "final_logit_softcapping"}),
        ignored=("mm.", "vision."),
        alternates=True,
    ),
}


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of the network."""

    name: str  # of the architecture
    family: Family
    layers: int
    width: int
    inner: int
    heads: int
    key_heads: int
    head_width: int
    vocabulary: int
    context: int
    tied: bool


def read(file: GgufFile) -> Shape:
    """Return the sizes that the fields say. Raises UnsupportedModel for what no family here has."""
    fields = file.fields
    kind = fields.text("general.type", "model")
    if kind != "model":
        raise UnsupportedModel(f"a file of type {kind!r} is not supported: give the model's own file")
    name = fields.text("general.architecture")
    if name not in FAMILIES:
        raise UnsupportedModel(f"architecture {name!r} is not supported: allowed: {', '.join(FAMILIES)}")
    family = FAMILIES[name]
    _check_fields(fields, name, family)
    heads, width = _size(fields, f"{name}.attention.head_count"), _size(fields, f"{name}.embedding_length")
    head_width = _size(fields, f"{name}.attention.key_length", width // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if (found := fields.integer(f"{name}.{key}", head_width)) != head_width:
            raise UnsupportedModel(f"{key} {found} with heads of {head_width} is not supported: they must be equal")
    if head_width % 2:
        raise UnsupportedModel(f"heads of width {head_width} are not supported: allowed: even widths")
    embedding = file.tensors.get(EMBEDDING)
    if embedding is None:
        raise SettingError(f"it has no tensor {EMBEDDING}; fetch the model's own file")
    return Shape(
        name=name,
        family=family,
        layers=_size(fields, f"{name}.block_count"),
        width=width,
        inner=_size(fields, f"{name}.feed_forward_length"),
        heads=heads,
        key_heads=_size(fields, f"{name}.attention.head_count_kv", heads),
        head_width=head_width,
        vocabulary=embedding.shape[0],
        context=_size(fields, f"{name}.context_length"),
        tied=HEAD not in file.tensors,
    )


def weights(file: GgufFile, shape: Shape) -> list[Weight]:
    """Return the folder's weights. Raises SettingError if a tensor is missing, has another shape or is unknown."""
    if shape.layers > len(file.tensors):
        raise SettingError(f"it has {len(file.tensors)} tensors for {shape.layers} layers; fetch it again")
    wanted = {name: (weight, size) for name, weight, size in _tensors(shape)}
    for name in file.tensors:
        if name not in wanted and name != rotary.FREQUENCIES:
            raise UnsupportedModel(f"tensor {name} is not supported: {shape.name} has none such here")
    found = []
    for name, (weight, size) in wanted.items():
        tensor = file.tensors.get(name)
        if tensor is None:
            raise SettingError(f"it has no tensor {name}; fetch the model's own file")
        if tensor.shape != size:
            raise SettingError(f"tensor {name} is {list(tensor.shape)}, by the fields {list(size)}; fetch it again")
        found.append(_weight(shape, weight, tensor))
    return found


def configuration(file: GgufFile, shape: Shape, dtype: str) -> dict[str, Any]:
    """Return config.json but for the special tokens."""
    fields, family = file.fields, shape.family
    base = fields.number(f"{shape.name}.rope.freq_base", family.rotary_base)
    scaled = rotary.scaling(file, shape.name, base, shape.head_width)
    return {
        "architectures": [family.class_name],
        "model_type": family.model_type,
        "hidden_size": shape.width,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.key_heads,
        "head_dim": shape.head_width,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": shape.context,
        "rope_theta": base,
        "rms_norm_eps": fields.number(f"{shape.name}.attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": shape.tied,
        "torch_dtype": dtype,
        **({"rope_scaling": scaled} if scaled else {}),
        **(_alternating(fields, shape) if family.alternates else {"hidden_act": "silu"}),
    }


def _alternating(fields: Fields, shape: Shape) -> dict[str, Any]:
    """Return the part of config.json that only Gemma 3 has."""
    kinds = ["full_attention" if place % PATTERN == 0 else "sliding_attention" for place in range(1, shape.layers + 1)]
    scalar = shape.width // shape.heads if shape.layers == LAYERS_OF_27B else shape.head_width
    capped = fields.number(f"{shape.name}.final_logit_softcapping", 0.0)
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "layer_types": kinds,
        "sliding_window": _size(fields, f"{shape.name}.attention.sliding_window"),
        "rope_local_base_freq": fields.number(f"{shape.name}.rope.freq_base_swa", 10_000.0),
        "query_pre_attn_scalar": scalar,
        **({"final_logit_softcapping": capped} if capped else {}),
    }


def _check_fields(fields: Fields, name: str, family: Family) -> None:
    """Refuse by name a field of the architecture that this converter does not know: it may change what is computed."""
    for each in fields.names():
        key = each.removeprefix(f"{name}.")
        if key == each or key in _KEYS | family.keys | _IGNORED or key.startswith(family.ignored or ("\0",)):
            continue
        if key not in _ZERO:
            raise UnsupportedModel(f"field {each} is not supported: it may change what the model computes")
        if fields.integer(each):
            raise UnsupportedModel("a mixture of experts is not supported: give a dense model")


def _size(fields: Fields, name: str, default: int | None = None) -> int:
    found = fields.integer(name, default)
    if not 1 <= found <= MOST:
        raise SettingError(f"field {name} is {found}, allowed: 1 to {MOST}")
    return found


def _tensors(shape: Shape) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield each tensor's name in the file, its name in the folder, and its shape."""
    query, key = shape.heads * shape.head_width, shape.key_heads * shape.head_width
    matrices = {
        "attn_q": ("self_attn.q_proj", query, shape.width),
        "attn_k": ("self_attn.k_proj", key, shape.width),
        "attn_v": ("self_attn.v_proj", key, shape.width),
        "attn_output": ("self_attn.o_proj", shape.width, query),
        "ffn_gate": ("mlp.gate_proj", shape.inner, shape.width),
        "ffn_up": ("mlp.up_proj", shape.inner, shape.width),
        "ffn_down": ("mlp.down_proj", shape.width, shape.inner),
    }
    yield EMBEDDING, "model.embed_tokens.weight", (shape.vocabulary, shape.width)
    for layer in range(shape.layers):
        own, its = f"blk.{layer}.", f"model.layers.{layer}."
        for name, (weight, rows, columns) in matrices.items():
            yield f"{own}{name}.weight", f"{its}{weight}.weight", (rows, columns)
            if name in shape.family.biases:
                yield f"{own}{name}.bias", f"{its}{weight}.bias", (rows,)
        for names, size in ((shape.family.norms, shape.width), (shape.family.head_norms, shape.head_width)):
            for name, weight in names.items():
                yield f"{own}{name}.weight", f"{its}{weight}.weight", (size,)
    yield NORM, "model.norm.weight", (shape.width,)
    if not shape.tied:
        yield HEAD, "lm_head.weight", (shape.vocabulary, shape.width)


def _weight(shape: Shape, name: str, tensor: Tensor) -> Weight:
    paired = {"q_proj": shape.heads, "k_proj": shape.key_heads} if shape.family.paired_rows else {}
    added = shape.family.added_to_norms if name.endswith("norm.weight") else 0.0
    return Weight(name, tensor, paired.get(name.split(".")[-2], 0), added)
