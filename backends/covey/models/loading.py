"""A Hugging Face model folder into a module that can be served, or a refusal that names what cannot.

Knows nothing of pools or passes: it checks the configuration, loads safetensors and finds end tokens.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from covey.contracts.errors import SettingError, UnsupportedModel
from covey.models import dtypes, refusals
from covey.models.refusals import weight_files
from covey.process import cpu


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence progress bars, log lines and warnings of other libraries: a server's output is its own."""
    from transformers.utils import logging as hf_logging

    level, bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        hf_logging.set_verbosity(level)
        if bars:
            hf_logging.enable_progress_bar()


def read_config(folder: Path) -> Any:
    """Return the folder's configuration; a folder that is no model is a SettingError that says what is missing."""
    kind = refusals.servable(folder)["model_type"]
    from transformers import AutoConfig

    with quiet():
        try:
            config = AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        except Exception as error:  # transformers raises many kinds; all mean that it cannot read this
            said = " ".join(line.strip() for line in str(error).splitlines()[:2])
            raise UnsupportedModel(f"{folder}: model type {kind!r} is not supported: {said}") from error
    refusals.by_config(folder, lambda key: getattr(config, key, None))  # its family's defaults included
    return config


def load_module(folder: Path, config: Any, dtype: torch.dtype, device: torch.device, attention: str) -> torch.nn.Module:
    """Return the causal language model of `folder`, in evaluation mode, its attention going through `attention`."""
    from transformers import AutoModelForCausalLM

    weight_files(folder)  # refuses by name what is not there
    module: torch.nn.Module
    with quiet():
        try:
            module, report = AutoModelForCausalLM.from_pretrained(
                str(folder),
                config=config,
                dtype=dtype,
                attn_implementation=attention,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # whoever asked is told which
                output_loading_info=True,
            )
        except SafetensorError as error:
            raise SettingError(f"{folder}: the weights cannot be read: {error}") from error
        except ValueError as error:
            raise UnsupportedModel(f"{folder}: {type(config).__name__} is not supported: {error}") from error
        except (OSError, RuntimeError) as error:
            raise SettingError(f"{folder}: the weights cannot be read: {error}") from error
        except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError) as error:  # such values
            said = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            raise UnsupportedModel(f"{folder}: no model can be built as config.json says: {said}") from error
    missing = sorted(report.get("missing_keys", ()))
    if missing:
        raise SettingError(f"{folder}: the weights lack {missing[0]} and {len(missing) - 1} more; copy them whole")
    for name, held, wanted in sorted(report.get("mismatched_keys", ())):
        raise SettingError(
            f"{folder}: {name} is {tuple(held)}, by config.json {tuple(wanted)}: copy both from one model"
        )
    module = module.to(device).eval().requires_grad_(False)
    for name, weight in module.named_parameters():
        if weight.numel() and not all(map(math.isfinite, torch.aminmax(weight))):
            raise SettingError(f"{folder}: {name} has a number that is NaN or infinite, allowed: finite numbers")
    return module


def find_end_ids(folder: Path, config: Any) -> tuple[int, ...]:
    """Return the tokens that end a text. Ids outside the vocabulary, such as -1 for none, are no tokens."""
    ids = refusals.end_ids(folder, getattr(config, "eos_token_id", None))
    return tuple(i for i in ids if 0 <= i < int(config.vocab_size))


def find_max_positions(config: Any) -> int:
    """Return the longest text, in tokens. If a model's rotary factors change at some length, kept keys would be wrong
    beyond it, so the model is served up to that length. To serve longer texts, configure the long factors for all."""
    words = ("max_position_embeddings", "max_seq_len", "seq_length")
    most = int(next((found for word in words if (found := getattr(config, word, None))), 2048))
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope" and rope.get("short_factor") != rope.get("long_factor"):
        own = getattr(config, "original_max_position_embeddings", None)
        original: Any = rope.get("original_max_position_embeddings") or own or most
        most = min(most, int(original))
    return most


def choose_device(name: str) -> torch.device:
    """Return the device to compute on. A GPU always has its number: `cuda` alone is another device in each thread."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise SettingError(f"device: got {name!r}, allowed: auto, cpu, cuda, cuda:N") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SettingError(f"device: got {name!r}, but torch sees no GPU; use auto or cpu")
    if name == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    return device


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return bfloat16 where the hardware multiplies it, else float32, or the named type. Raises SettingError."""
    known = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64, "float16": torch.float16}
    if name != "auto":
        if name not in known:
            raise SettingError(f"dtype: got {name!r}, allowed: auto, {', '.join(known)}")
        return known[name]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    return torch.bfloat16 if cpu.multiplies_bfloat16() else torch.float32


def serving_dtype(name: str, device: torch.device, folder: str | Path) -> str:
    """Return the type that a target is served in there; see `dtypes.served`."""
    best = str(choose_dtype("auto", device)).removeprefix("torch.")
    return dtypes.served(name, folder, best, halves=device.type == "cuda")
