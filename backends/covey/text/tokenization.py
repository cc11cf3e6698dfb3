"""Loads a model folder's tokenizer."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from covey.contracts.errors import BadField, SettingError
from covey.contracts.types import Ints
from covey.text.model_folder import has_file

OTHER_FORMS = ("tokenizer.model", "vocab.json", "tokenizer_config.json")  # of a tokenizer; not supported
KEEPS_TEXT = ("Sequence", "ByteLevel", "Digits", "Split")  # pre-tokenizers that drop no text


def load_tokenizer(folder: str | Path) -> Tokenizer | None:
    """Return the folder's tokenizer, or None if it has none (such a target takes and returns only token ids). Remove
    truncation and padding that training left in its file, as transformers does, so that prompts stay whole."""
    tokenizer = _read(folder)
    if tokenizer is not None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
    return tokenizer


def _read(folder: str | Path) -> Tokenizer | None:
    path = Path(folder) / "tokenizer.json"
    if has_file(path):
        try:
            return Tokenizer.from_file(str(path))
        except Exception as error:  # the library's errors have no common base
            raise SettingError(f"{path}: not a tokenizer: {error}; copy it again") from None
    if not any(has_file(Path(folder) / name) for name in OTHER_FORMS):
        return None
    code = f"from transformers import AutoTokenizer as T; T.from_pretrained('{folder}').save_pretrained('{folder}')"
    raise SettingError(f'{folder}: only tokenizer.json is read; write it once: python -c "{code}"')


def token_ids(tokenizer: Tokenizer, text: str) -> Ints:
    """Return the tokens of a prompt. Raises BadField if the tokenizer fails. Unlike `encode`, `encode_batch_fast`
    releases the GIL, and it skips the offsets of tokens, which would double the time."""
    try:
        return np.asarray(tokenizer.encode_batch_fast([text])[0].ids, np.int32)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # a regular expression that backtracks too often panics, which is no Exception
        raise BadField("text_input", text, "text that the model's tokenizer can cut into tokens") from None


def longest_token(tokenizer: Tokenizer) -> float:
    """Return the most bytes of text that one token can stand for; infinite if unknown. Examples: the tokenizer changes
    or drops text first, or has a token for unknown text."""
    made = json.loads(tokenizer.to_str())
    model, pieces = made["model"], [made["pre_tokenizer"], *(made["pre_tokenizer"] or {}).get("pretokenizers", ())]
    by_bytes = any(piece and piece["type"] == "ByteLevel" for piece in pieces)
    removed = any(piece and (piece["type"] not in KEEPS_TEXT or piece.get("behavior") == "Removed") for piece in pieces)
    stripped = any(token["lstrip"] or token["rstrip"] for token in made["added_tokens"])
    if model["type"] != "BPE" or not set(ByteLevel.alphabet()) <= model["vocab"].keys():
        return math.inf
    if not by_bytes or removed or made["normalizer"] or made["truncation"] or stripped:
        return math.inf
    # ByteLevel writes each byte of the text as one character, so a token's length is in bytes.
    added = (len(token["content"].encode()) for token in made["added_tokens"])
    return max(*map(len, model["vocab"]), *added, 1)
