"""The contents of a model's folder, whose files anybody may have written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from covey.contracts.errors import SettingError
from covey_client.wire import INPUT_BY_NAME

MOST_BYTES, MOST_DEPTH = 64 << 20, 64  # of a file of settings, and of what is nested in it
DEEP = f"nested deeper than {MOST_DEPTH}"
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """What a folder says to those who ask the model."""

    sampling: Mapping[str, float] = field(default_factory=dict)  # generation_config.json's, by names of SAMPLING
    has_chat_template: bool = False


def read(folder: str | Path) -> ModelFolder:
    """Read what the folder's files say; files that are not there, or cannot be read, say nothing."""
    path = Path(folder)
    defaults = _settings(path / "generation_config.json")
    sampling = {name: defaults[name] for name in SAMPLING if _allowed(name, defaults.get(name))}
    apart = (path / "chat_template.jinja").is_file()
    has_template = apart or bool(_settings(path / "tokenizer_config.json").get("chat_template"))
    return ModelFolder(sampling, has_template)


def _allowed(name: str, value: Any) -> bool:
    """Return whether a request could have this value."""
    allowed = INPUT_BY_NAME[name]
    if type(value) is not int and (allowed.dtype == "INT32" or type(value) is not float):
        return False
    return allowed.low < value <= allowed.high if allowed.above else allowed.low <= value <= allowed.high


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
