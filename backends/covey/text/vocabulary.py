"""Tells whether a drafter speaks its target's tokens, by the files of their folders alone."""

from __future__ import annotations

from pathlib import Path

from covey.contracts.errors import SettingError
from covey.text.model_folder import has_file, read_object
from covey.text.tokenization import load_tokenizer

UNKNOWN = 0  # the size where the folder does not say


def size(folder: str | Path) -> int:
    """Return how many tokens the folder's model knows, by its configuration."""
    path = Path(folder) / "config.json"
    if not has_file(path):
        return UNKNOWN
    config = read_object(path)
    inner = config.get("text_config")
    found = config.get("vocab_size") or (inner.get("vocab_size") if isinstance(inner, dict) else None) or UNKNOWN
    if type(found) is not int:
        raise SettingError(f"{path}: vocab_size is {found!r}, allowed: a whole number")
    return found


def misfit(drafter: str | Path, target: str | Path) -> str:
    """Return what keeps the model in folder `drafter` from drafting for that in `target`, as in "it has ..."; "" when
    it can, and when the files do not tell."""
    own, wanted = size(drafter), size(target)
    if UNKNOWN not in (own, wanted) and own != wanted:
        return f"a vocabulary of {own} tokens, {target} one of {wanted}"
    return "" if _same_tokens(Path(drafter), Path(target)) else f"another tokenizer than {target}"


def _same_tokens(one: Path, other: Path) -> bool:
    """Return whether ids mean the same in both folders. Added tokens may have other names: of one family, chat models
    have more of them. True where a folder has no tokenizer."""
    files = [folder / "tokenizer.json" for folder in (one, other)]
    if all(has_file(path) for path in files) and files[0].read_bytes() == files[1].read_bytes():
        return True
    tokenizers = [load_tokenizer(folder) for folder in (one, other)]
    words = [tokenizer.get_vocab(with_added_tokens=False) for tokenizer in tokenizers if tokenizer is not None]
    return len(words) < 2 or words[0] == words[1]
