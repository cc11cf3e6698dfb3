"""A model folder's tokenizer."""

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

OTHER_FORMS = ("tokenizer.model", "vocab.json", "tokenizer_config.json")  # of a tokenizer, which are not read
KEEPS_TEXT = ("Sequence", "ByteLevel", "Digits", "Split")  # pre-tokenizers that leave none of the text out


def load_tokenizer(folder: str | Path) -> Tokenizer | None:
    """Return the folder's tokenizer, or None where it has none (such a target takes and gives token ids alone). A
    length to cut or pad texts to that training left in its file is taken out, as by transformers: prompts are whole."""
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
        except Exception as error:  # what the library raises has no common base
            raise SettingError(f"{path}: not a tokenizer: {error}; copy it again") from None
    if not any(has_file(Path(folder) / name) for name in OTHER_FORMS):
        return None
    code = f"from transformers import AutoTokenizer as T; T.from_pretrained('{folder}').save_pretrained('{folder}')"
    raise SettingError(f'{folder}: only tokenizer.json is read; write it once: python -c "{code}"')


def token_ids(tokenizer: Tokenizer, text: str) -> Ints:
    """Return the tokens of a prompt. Other threads run meanwhile, which they do not while `encode` does; and what is
    not asked for, which characters each token is, takes as long again. Raises BadField if the tokenizer gives up."""
    try:
        return np.asarray(tokenizer.encode_batch_fast([text])[0].ids, np.int32)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # a regular expression that tries too often panics, which is no Exception
        raise BadField("text_input", text, "text that the model's tokenizer can cut into tokens") from None


def longest_token(tokenizer: Tokenizer) -> float:
    """Return how many bytes of text one token can stand for at most; infinite where that is not known, as where text is
    changed or left out before it is cut into tokens, or where a token stands for whatever is in no vocabulary."""
    made = json.loads(tokenizer.to_str())
    model, pieces = made["model"], [made["pre_tokenizer"], *(made["pre_tokenizer"] or {}).get("pretokenizers", ())]
    by_bytes = any(piece and piece["type"] == "ByteLevel" for piece in pieces)
    removed = any(piece and (piece["type"] not in KEEPS_TEXT or piece.get("behavior") == "Removed") for piece in pieces)
    stripped = any(token["lstrip"] or token["rstrip"] for token in made["added_tokens"])
    if model["type"] != "BPE" or not set(ByteLevel.alphabet()) <= model["vocab"].keys():
        return math.inf
    if not by_bytes or removed or made["normalizer"] or made["truncation"] or stripped:
        return math.inf
    # ByteLevel writes each byte of the text as one character, so that a token's length is in bytes.
    added = (len(token["content"].encode()) for token in made["added_tokens"])
    return max(*map(len, model["vocab"]), *added, 1)
