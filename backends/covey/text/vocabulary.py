"""Tells from the model folders whether a drafter has its target's vocabulary."""

from __future__ import annotations

import logging
from pathlib import Path

from tokenizers import Tokenizer

from covey.contracts.errors import SettingError
from covey.text.model_folder import has_file, read_object
from covey.text.tokenization import load_tokenizer

log = logging.getLogger("covey.text")

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
    """Return why the model in folder `drafter` cannot draft for that in `target`, as the end of "it has ..."; "" if it
    can. The sizes may differ if the tokenizers agree: outputs of one family are padded to several sizes. Two models of
    one size without tokenizers count as agreeing. Added tokens may differ: chat models have more of them."""
    own, wanted = size(drafter), size(target)
    folders = Path(drafter), Path(target)
    files = [folder / "tokenizer.json" for folder in folders]
    if all(has_file(path) for path in files) and files[0].read_bytes() == files[1].read_bytes():
        return ""
    one, other = (load_tokenizer(folder) for folder in folders)
    if one is None or other is None:
        if UNKNOWN in (own, wanted) or own == wanted:
            return ""
        return f"a vocabulary of {own} tokens, {target} one of {wanted}, and no tokenizers to compare"
    if not _agree(one, other, with_added_tokens=False):
        return f"another tokenizer than {target}"
    if not _agree(one, other, with_added_tokens=True):
        log.warning("%s and %s have other added tokens: the target refuses most drafts of those", drafter, target)
    return ""


def _agree(one: Tokenizer, other: Tokenizer, *, with_added_tokens: bool) -> bool:
    """Return whether there are ids that both have, and each of them is the same text."""
    mine, theirs = (
        {token: text for text, token in each.get_vocab(with_added_tokens=with_added_tokens).items()}
        for each in (one, other)
    )
    common = mine.keys() & theirs.keys()
    return bool(common) and all(mine[token] == theirs[token] for token in common)
