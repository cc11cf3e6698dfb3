"""The contents of a model's folder, whose files anybody may have written."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covey.contracts.errors import SettingError, one_line

MOST_BYTES, MOST_DEPTH = 64 << 20, 64  # of a file of settings, and of what is nested in it
DEEP = f"nested deeper than {MOST_DEPTH}"
SAMPLING = ("do_sample", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens")


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """The recommendations of a folder to those who ask the model. None of them changes what a request gets."""

    sampling: str = ""  # generation_config.json's defaults, as in "temperature 0.7, top_p 0.8"
    has_chat_template: bool = False


def read(folder: str | Path) -> ModelFolder:
    """Read what the folder's files say; files that are not there, or cannot be read, say nothing."""
    path = Path(folder)
    defaults = _settings(path / "generation_config.json")
    said = [f"{key} {one_line(str(defaults[key]), 40)}" for key in SAMPLING if defaults.get(key) is not None]
    apart = (path / "chat_template.jinja").is_file()
    has_template = apart or bool(_settings(path / "tokenizer_config.json").get("chat_template"))
    return ModelFolder(", ".join(said), has_template)


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; SettingError where there is none that can be worked with."""
    has_file(path)
    try:
        with path.open("rb") as file:
            return _object(file.read(MOST_BYTES + 1))
    except OSError as error:
        raise SettingError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        said = str(error) if isinstance(error, ValueError) else DEEP
        raise SettingError(f"{path}: not a JSON object: {said}; copy it again") from error


def has_file(path: Path) -> bool:
    """Return whether there is such a file. Raises SettingError for a FIFO, a device or a folder: reading it may never
    end."""
    if path.is_file():
        return True
    if path.exists():
        raise SettingError(f"{path}: cannot be read: it is no regular file; put a copy of the model's own file there")
    return False


def is_own_file(name: object) -> bool:
    """Return whether `name`, as one file names another, names a file in the same folder."""
    if not isinstance(name, str) or not name.isprintable() or "/" in name:
        return False
    return name not in ("", ".", "..") and len(name.encode()) < 256


def _object(raw: bytes) -> dict[str, Any]:
    if len(raw) > MOST_BYTES:
        raise ValueError(f"more than {MOST_BYTES} bytes")
    content = json.loads(raw.decode())
    if not isinstance(content, dict):
        raise ValueError(type(content).__name__)
    level: list[Any] = [content]
    for _ in range(MOST_DEPTH):
        level = [each for each in level if isinstance(each, (dict, list))]
        level = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]
    if level:
        raise ValueError(DEEP)
    return content


def _settings(path: Path) -> dict[str, Any]:
    try:
        return read_object(path)
    except SettingError:
        return {}
