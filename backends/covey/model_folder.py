"""What a model's folder recommends to those who ask the model. None of it changes what a request gets."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

SAMPLING = ("do_sample", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens")


@dataclass(frozen=True, slots=True)
class ModelFolder:
    sampling: str = ""  # generation_config.json's defaults, as in "temperature 0.7, top_p 0.8"
    has_chat_template: bool = False


def read(folder: str | Path) -> ModelFolder:
    """What the folder's files say; files that are not there, or not to be read, say nothing."""
    path = Path(folder)
    defaults = _settings(path / "generation_config.json")
    said = [f"{key} {defaults[key]}" for key in SAMPLING if defaults.get(key) is not None]
    apart = (path / "chat_template.jinja").is_file()
    has_template = apart or bool(_settings(path / "tokenizer_config.json").get("chat_template"))
    return ModelFolder(", ".join(said), has_template)


def _settings(path: Path) -> dict[str, object]:
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return settings if isinstance(settings, dict) else {}
