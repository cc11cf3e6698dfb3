"""Reads a model's folder, whose files are not trusted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from covey.contracts.errors import SettingError
from covey_client.wire import INPUT_BY_NAME

MOST_BYTES, MOST_DEPTH = 64 << 20, 64  # of a file of settings
DEEP = f"nested deeper than {MOST_DEPTH}"
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A folder's defaults for requests."""

    sampling: Mapping[str, float] = field(default_factory=dict)  # generation_config.json's, by names of SAMPLING
    has_chat_template: bool = False


def read(folder: str | Path) -> ModelFolder:
    """Return the folder's defaults; ignore files that are missing or cannot be read."""
    path = Path(folder)
    defaults = _settings(path / "generation_config.json")
    sampling = {name: defaults[name] for name in SAMPLING if _allowed(name, defaults.get(name))}
    apart = (path / "chat_template.jinja").is_file()
    has_template = apart or bool(_settings(path / "tokenizer_config.json").get("chat_template"))
    return ModelFolder(sampling, has_template)


def _allowed(name: str, value: Any) -> bool:
    """Return whether a request may have this value."""
    allowed = INPUT_BY_NAME[name]
    if type(value) is not int and (allowed.dtype == "INT32" or type(value) is not float):
        return False
    return allowed.low < value <= allowed.high if allowed.above else allowed.low <= value <= allowed.high


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Raises SettingError if it has none, or a too large or deep one."""
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
    """Return whether the file exists. Raises SettingError for a FIFO, a device or a folder, as reading may never
    end."""
    if path.is_file():
        return True
    if path.exists():
        raise SettingError(f"{path}: cannot be read: it is no regular file; copy the model's own file there")
    return False


def is_own_file(name: object) -> bool:
    """Return whether `name`, found in one file of a folder, names a file in that folder."""
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
