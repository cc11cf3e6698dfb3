"""A model folder's tokenizer."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tokenizers import Tokenizer

from covey.errors import SettingError


def load_tokenizer(folder: str | Path) -> Tokenizer | None:
    """The folder's tokenizer, or None where it has none (such a target takes and gives token ids alone)."""
    path = Path(folder) / "tokenizer.json"
    if path.is_file():
        try:
            return Tokenizer.from_file(str(path))
        except Exception as error:  # what the library raises has no common base
            raise SettingError(f"{path}: not a tokenizer: {error}") from None
    if not any((Path(folder) / name).is_file() for name in ("tokenizer.model", "vocab.json", "tokenizer_config.json")):
        return None
    from transformers import AutoTokenizer  # slow to import, and seldom needed

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # transformers raises many kinds; all mean that it cannot read this
        said = str(error).splitlines()[0]
        raise SettingError(f"{folder}: its tokenizer cannot be read; save it with tokenizer.json: {said}") from None
    if not tokenizer.is_fast:
        raise SettingError(f"{folder}: its tokenizer has no fast form; save it with tokenizer.json")
    backend: Tokenizer = tokenizer.backend_tokenizer
    return backend


def tokenizer_digest(folder: str | Path) -> str:
    """SHA-256 of the folder's tokenizer.json, which tells whether ids mean the same; "" where it has none."""
    path = Path(folder) / "tokenizer.json"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
