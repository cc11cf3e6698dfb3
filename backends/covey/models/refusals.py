"""The reasons why a model folder cannot be served, as far as its files' names and its configuration tell. Whether ours
computes what transformers does, `modules.py` finds out when the model is loaded.

Reads neither weights nor transformers nor torch, so the launcher knows within a second what `loading.py` would find out
after many. Every refusal is one line that says what to serve instead.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from covey.contracts.errors import SettingError, UnsupportedModel
from covey.text.model_folder import has_file, is_own_file, read_object

# Features that no comparison of logits finds, by configuration key, with a model to serve instead.
_NAMED = {
    "is_encoder_decoder": ("an encoder-decoder", "serve a decoder-only language model, such as Llama or Qwen"),
    "quantization_config": (
        "a model with quantised weights",
        "serve the one that it was made from (base_model of its card), or another of it in bfloat16",
    ),
    "vision_config": ("image input", "serve a text-only model of the same family"),
    "audio_config": ("audio input", "serve a text-only model of the same family"),
    "alibi": ("ALiBi position bias", "serve a model with rotary or learned positions"),
    "attn_temperature_tuning": (
        "attention that changes with the position (attn_temperature_tuning)",
        "serve a model without it, such as Llama 3 or Qwen",
    ),
    "use_alibi": ("ALiBi position bias", "serve a model with rotary or learned positions"),
}
MOST = 1 << 24  # of a configuration's sizes
_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
_OPTIONAL_SIZES = ("num_key_value_heads", "head_dim", "max_position_embeddings")
_EPSILONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon")
_LISTS = ("architectures", "layer_types")
_MAPPING = "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"
_STATEFUL, _REPLACEABLE = "_is_stateful = True", "ALL_ATTENTION_FUNCTIONS"  # in the source of a family
_STATE = "it keeps state that is not keys and values; serve a model with attention in every layer"
_OWN_ATTENTION = "its attention cannot be replaced; serve a newer model, such as Llama, Qwen or Falcon 3"
_LAYER_TYPES = {"full_attention", "sliding_attention"}
_OTHER_HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMaskedLM")


def is_head(config: Mapping[str, Any]) -> bool:
    """Return whether a config.json is that of an EAGLE-3 head, in one of its two forms (`heads.py`). The first heads
    that were published say LlamaForCausalLM, and only the size of their vocabulary tells."""
    keys = ("speculators_config", "draft_vocab_size")
    return "Eagle3" in str(config.get("architectures")) or any(config.get(key) is not None for key in keys)


def holds_head(folder: Path) -> bool:
    """Return whether a folder holds an EAGLE-3 head."""
    return has_file(folder / "config.json") and is_head(described(folder))


def servable(folder: Path) -> dict[str, Any]:
    """Return what config.json says; refuse a folder whose files or configuration say that it cannot be served."""
    by_files(folder)
    config = described(folder)
    by_config(folder, config.get)
    by_type(folder, config)
    by_values(folder, config)
    return config


def by_config(folder: Path, get: Callable[[str], Any]) -> None:
    """Refuse by name what a forward pass of this model needs and the runtime has not. `get` gives a configuration's
    values by their keys, None where it has none."""

    def refuse(feature: str, why: str) -> None:
        raise UnsupportedModel(f"{folder}: {feature} is not supported: {why}")

    if is_head({key: get(key) for key in ("architectures", "speculators_config", "draft_vocab_size")}):
        raise SettingError(f"{folder}: is an EAGLE-3 head, no model of its own: give it to a drafter of kind head")
    for key in _LISTS:
        if not isinstance(get(key) or [], (list, tuple, str)):
            raise SettingError(f"{folder}: {key} of config.json is {get(key)!r}, allowed: a list")
    for key, feature in _NAMED.items():
        if get(key):
            refuse(*feature)
    strange = set(map(str, get("layer_types") or ())) - _LAYER_TYPES
    if strange:
        refuse(f"layer type {sorted(strange)[0]}", "serve a model with full or sliding-window attention")
    for rope in (get("rope_parameters"), get("rope_scaling")):
        inner = rope.values() if isinstance(rope, dict) else ()
        for part in (part for part in (rope, *inner) if isinstance(part, dict)):
            if "dynamic" in (part.get("rope_type"), part.get("type")):
                refuse("dynamic rotary scaling", "keys would have to be turned again as a text grows; take it out")
    for head in get("architectures") or ():
        if str(head).endswith(_OTHER_HEADS):
            refuse(head, "it has no head for tokens; serve the language model that it was trained from")


def by_files(folder: Path) -> None:
    """Refuse a folder whose model is in another form than ours, and a file."""
    if folder.is_file() or (not folder.exists() and folder.suffix in (".gguf", ".safetensors", ".bin")):
        if folder.suffix == ".gguf":
            raise SettingError(f"{folder}: {_gguf(folder) if folder.exists() else 'no such file'}")
        raise SettingError(f"{folder}: give the Hugging Face folder with config.json and safetensors")
    if not folder.is_dir():
        raise SettingError(
            f"{folder}: no such folder; give one with config.json and model.safetensors, or a name on the hub as "
            "OWNER/MODEL"
        )
    adapter = folder / "adapter_config.json"
    if has_file(adapter):
        base = read_object(adapter).get("base_model_name_or_path") or "its base"
        raise SettingError(
            f"{folder}: an adapter is not served by itself: merge it into {base} by peft's merge_and_unload "
            "(docs/models.md) and give the folder of the result"
        )
    if not has_file(folder / "config.json"):
        if files := sorted(folder.glob("*.gguf")):
            raise SettingError(f"{folder}: {_gguf(files[0])}")
        raise SettingError(f"{folder}: no config.json; give the folder of a Hugging Face model")


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files that hold the folder's weights: the one file, else those of its index."""
    files = sorted(folder.glob("*.safetensors"))
    files = [path for path in files if not path.name.startswith("adapter_") and has_file(path)]
    if not files:
        raise SettingError(f"{folder}: no safetensors weights; {_instead(folder)}")
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors") in files:
        return [folder / "model.safetensors"]
    if not has_file(index):
        raise SettingError(
            f"{folder}: {files[0].name} is there, and neither model.safetensors nor {index.name}, which says what lies "
            "in which file: copy the model whole"
        )
    content = read_object(index)
    held = content.get("weight_map")
    if "metadata" not in content or not isinstance(held, dict):  # transformers wants both
        raise SettingError(f"{index}: not an index of weights: it has no metadata or no weight_map; copy it again")
    strange = [name for name in held.values() if not (is_own_file(name) and name.endswith(".safetensors"))]
    if strange:
        raise SettingError(
            f"{index}: names {strange[0]!r} as a file of weights, allowed: safetensors files of the same folder; copy "
            "it again from where the model comes from"
        )
    named = sorted({folder / name for name in held.values()})
    if not named:
        raise SettingError(f"{index}: not an index of weights: it names no file; copy it again")
    missing = [path.name for path in named if not has_file(path)]
    if missing:
        raise SettingError(
            f"{folder}: {missing[0]} is not there, {len(missing)} of {len(named)} shards; copy them whole"
        )
    return named


def described(folder: Path, name: str = "config.json") -> dict[str, Any]:
    """Return the folder's config.json, or another file of settings, as it is written."""
    return read_object(folder / name)


@cache
def language_models() -> frozenset[str]:
    """Return the types that transformers has a causal language model of, by its source: importing it takes seconds."""
    path = _transformers() / "auto" / "modeling_auto.py"
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == _MAPPING:
            assert isinstance(statement.value, ast.Call)
            return frozenset(dict(ast.literal_eval(statement.value.args[0])))
    raise SettingError(f"{path}: no {_MAPPING}: this version of transformers is not known")


def _transformers() -> Path:
    """Return the folder of transformers' models."""
    package = find_spec("transformers")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "models"


def by_type(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse a model type that is no language model of transformers. Refuse a type by its source if it keeps state
    other than keys and values, or if its attention cannot be replaced."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in language_models():
        raise UnsupportedModel(f"{folder}: model type {kind!r} is not supported: {own_code(config)}")
    name = kind.replace("-", "_").removesuffix("_text")
    path = _transformers() / name / f"modeling_{name}.py"
    source = path.read_text(encoding="utf-8") if path.is_file() else _REPLACEABLE
    for reason in (_STATE if _STATEFUL in source else "", "" if _REPLACEABLE in source else _OWN_ATTENTION):
        if reason:
            raise UnsupportedModel(f"{folder}: model type {kind!r} is not supported: {reason}")


def by_values(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse invalid sizes, numbers and end tokens: transformers would refuse them later, with a message that does not
    help."""
    if config.get("per_layer_config"):  # of the file: transformers' object has one for every family
        raise UnsupportedModel(f"{folder}: a layer of another shape is not supported: one pool holds all layers' keys")
    if "vocab_size" not in config and "text_config" not in config:  # a family's default fits few models
        raise SettingError(f"{folder}: config.json has no vocab_size; copy it again")
    for key in (*_SIZES, *_OPTIONAL_SIZES):
        value = config.get(key, 1)
        if (type(value) is not int or not 1 <= value <= MOST) and not (value is None and key in _OPTIONAL_SIZES):
            allowed = f"a whole number from 1 to {MOST}"
            raise SettingError(f"{folder}: {key} of config.json is {value!r}, allowed: {allowed}")
    for key, number in _floats(config):
        if not math.isfinite(number):
            raise SettingError(f"{folder}: {key} of config.json is {number}, allowed: a finite number")
    for key in _EPSILONS:
        value = config.get(key)
        if value is not None and (type(value) not in (int, float) or not 0 <= value <= 1):
            raise SettingError(f"{folder}: {key} of config.json is {value!r}, allowed: a number from 0 to 1")
    named = config.get("transformers_weights")
    if named is not None and not is_own_file(named):
        allowed = "the name of a file of the same folder"
        raise SettingError(f"{folder}: transformers_weights of config.json is {named!r}, allowed: {allowed}")
    end_ids(folder, config.get("eos_token_id"))


def _floats(config: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, float]]:
    """Yield the floating-point numbers of a configuration with their keys, as in `rope_parameters.factor`. Numbers in
    lists are left out: a range may be infinite."""
    for key, value in config.items():
        named = f"{within}{key}"
        if isinstance(value, dict):
            tagged = value.get("__float__")  # transformers' way to write what JSON cannot
            yield from (
                ((named, float(tagged)),) if tagged in ("NaN", "Infinity", "-Infinity") else _floats(value, f"{named}.")
            )
        elif isinstance(value, float):
            yield named, value


def end_ids(folder: Path, otherwise: Any) -> list[int]:
    """Return the tokens that end a text: those of generation_config.json, else `otherwise`, one id or a list."""
    path, ends = folder / "generation_config.json", None
    if has_file(path):
        ends = read_object(path).get("eos_token_id")
    if ends is None:
        ends = otherwise
    ids = [] if ends is None else ends if isinstance(ends, (list, tuple)) else [ends]
    if not all(type(token) is int for token in ids):
        raise SettingError(f"{folder}: eos_token_id: got {ends!r}, allowed: one token id or a list")
    return list(ids)


def own_code(config: Mapping[str, Any]) -> str:
    """Return the message about a model type that transformers does not know. It names Python code that comes with the
    model."""
    if config.get("auto_map"):
        return "it brings Python code of its own (auto_map), which is not run; serve a family of docs/models.md"
    return "transformers has no language model of it; serve a family of docs/models.md"


def _gguf(file: Path) -> str:
    """Return what to do with a GGUF file where a folder is needed."""
    return f"give MODEL={file} itself, or write a folder from it: python -m covey.gguf {file} FOLDER"


def _instead(folder: Path) -> str:
    other = sorted([*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")])
    if files := sorted(folder.glob("*.gguf")):
        return _gguf(files[0])
    if not other:
        return "put model.safetensors there"
    if not list(folder.glob("pytorch_model*.bin")):
        return f"{other[0].name} is not read: fetch the model's safetensors"
    if holds_head(folder):
        convert = (
            "import torch; from safetensors.torch import save_file; "
            f"w = torch.load('{folder}/pytorch_model.bin', map_location='cpu', weights_only=True); "
            f"save_file({{n: t.contiguous() for n, t in w.items()}}, '{folder}/model.safetensors')"
        )
    else:
        convert = (
            "from transformers import AutoModelForCausalLM as M; "
            f"M.from_pretrained('{folder}', dtype='auto').save_pretrained('{folder}')"
        )
    return f'{other[0].name} is not read; convert it once: .venv/bin/python -c "{convert}"'
