"""Tells from the model folders whether a drafter has its target's vocabulary."""

from __future__ import annotations

from pathlib import Path

from covey.contracts.errors import SettingError
from covey.text.model_folder import has_file, read_object
from covey.text.tokenization import load_tokenizer

UNKNOWN = 0  # the size if the folder does not tell it


def size(folder: str | Path) -> int:
    """Return the vocabulary size in the folder's configuration, or UNKNOWN."""
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
    """Return why the model in folder `drafter` cannot draft for that in `target`, as the end of "it has ...". Return ""
    if it can, or if the files do not tell."""
    own, wanted = size(drafter), size(target)
    if UNKNOWN not in (own, wanted) and own != wanted:
        return f"a vocabulary of {own} tokens, {target} one of {wanted}"
    return "" if _same_tokens(Path(drafter), Path(target)) else f"another tokenizer than {target}"


def _same_tokens(one: Path, other: Path) -> bool:
    """Return whether ids mean the same in both folders; True if a folder has no tokenizer. Added tokens may differ,
    because chat models of a family have more of them."""
    files = [folder / "tokenizer.json" for folder in (one, other)]
    if all(has_file(path) for path in files) and files[0].read_bytes() == files[1].read_bytes():
        return True
    tokenizers = [load_tokenizer(folder) for folder in (one, other)]
    words = [tokenizer.get_vocab(with_added_tokens=False) for tokenizer in tokenizers if tokenizer is not None]
    return len(words) < 2 or words[0] == words[1]
