"""Writes a pair as Hugging Face folders, with a fitting tokenizer and a profile that serves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import GenerationConfig, PreTrainedModel

from covey.contracts.errors import SettingError
from covey_training.aligned.build import Pair
from covey_training.aligned.shapes import END_OF_TEXT
from covey_training.architecture import staged

TARGET, DRAFTER, PROFILE = "target", "draft_aligned", "aligned.toml"
SHARD = "4GB"
ROOM = """
[scheduler]
max_running = 128
token_budget = 1024
"""


def check_free(folder: Path) -> None:
    """Raise SettingError for a folder with files in it: another model's shard might be read as one of this model's."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise SettingError(f"{folder} is not an empty folder: remove it, or choose another")


def save(pair: Pair, folder: Path, tokenizer_folder: Path) -> Path:
    """Write `folder/target`, `folder/draft_aligned` and the profile; return its path. `tokenizer_folder` has the
    bundled tokenizer. The drafter's folder gets copies of the tensors that it shares with the target."""
    check_free(folder)
    for name, model in ((TARGET, pair.target), (DRAFTER, pair.drafter)):
        with staged(folder / name) as staging:
            model.generation_config = GenerationConfig(bos_token_id=END_OF_TEXT, eos_token_id=END_OF_TEXT)
            model.save_pretrained(staging, max_shard_size=SHARD)
            write_tokenizer(tokenizer_folder, staging, model)
    path = folder / PROFILE
    path.write_text(profile_of(pair, folder.resolve()), encoding="utf-8")
    return path


def write_tokenizer(source: Path, folder: Path, model: PreTrainedModel) -> None:
    learned = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    settings = json.loads((source / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings["model_max_length"] = model.config.max_position_embeddings
    for name, content in (
        ("tokenizer.json", fitted(learned, model.config.vocab_size)),
        ("tokenizer_config.json", settings),
    ):
        (folder / name).write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def fitted(learned: dict[str, Any], vocabulary: int) -> dict[str, Any]:
    """Return a byte-level BPE with exactly `vocabulary` tokens. It keeps the first merges, or keeps all and adds
    words that no text is ever split into. So every token of the model has a text."""
    tokens: dict[str, int] = {token: n for token, n in learned["model"]["vocab"].items() if n < vocabulary}
    merges = [pair for pair in learned["model"]["merges"] if "".join(pair) in tokens]
    padding = {f"Ġ<{n}>": n for n in range(len(tokens), vocabulary)}
    return {**learned, "model": {**learned["model"], "vocab": tokens | padding, "merges": merges}}


def profile_of(pair: Pair, folder: Path) -> str:
    """Return the profile of the pair, which `make serve PROFILE=` takes."""
    dtype = str(pair.target.dtype).removeprefix("torch.")
    layers = (pair.target.config.num_hidden_layers, pair.drafter.config.num_hidden_layers)
    models = ["target", "tokenize", "detokenize", "covey", "covey_unary", "ensemble", DRAFTER]
    return f"""\
# Random weights, seed {pair.seed}; {layers[0]} layers, of which the drafter has the first {layers[1]}; the output of
# the others is damped to {pair.damping:.5f}. Measured: {pair.measured.coupled:.3f} agreement at temperature 1,
# {pair.measured.greedy:.3f} greedy, {pair.measured.entropy:.2f} bits per token. If you move the folders, edit the
# paths below.
description = "synthetic pair that agrees {pair.wanted:g} of the time"
models = {json.dumps(models)}

[target]
folder = {json.dumps(str(folder / TARGET))}
dtype = "{dtype}"
{ROOM if pair.target.device.type == "cuda" else ""}
[speculation]
drafters = ["{DRAFTER}"]

[drafter]
dtype = "auto"
device = "auto"
folders = [{json.dumps(f"{DRAFTER}:{folder / DRAFTER}")}]
"""
