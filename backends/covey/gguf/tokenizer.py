"""The tokenizer of a GGUF file, from its own tokens, types, merges and scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from covey.contracts.errors import SettingError, UnsupportedModel
from covey.gguf import pieces
from covey.gguf.file import Fields
from covey.gguf.splitting import BYTE_LEVEL, Splitting

WITHIN = "tokenizer.ggml."
BEGINS = frozenset({"llama-bpe"})  # pre-tokenizers whose texts begin with a token if the file does not say it


class TokenType(IntEnum):
    """llama.cpp's kinds of tokens."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens with their types, and ids of those with a meaning: None where the file names none."""

    tokens: Sequence[str]
    types: Sequence[int]
    begin: int | None
    ends: tuple[int, ...]
    unknown: int | None
    padding: int | None

    def added(self, kind: TokenType) -> list[AddedToken]:
        """Return the tokens of a kind as tokens that are cut out of texts before anything else."""
        special = kind == TokenType.CONTROL
        return [
            AddedToken(token, normalized=False, special=special)
            for token, of in zip(self.tokens, self.types)
            if of == kind
        ]


def read(fields: Fields, size: int) -> Vocabulary:
    """Return the vocabulary. Raises SettingError if it has not `size` tokens, each once."""
    tokens, types = fields.texts(f"{WITHIN}tokens"), fields.numbers(f"{WITHIN}token_type").tolist()
    if not len(tokens) == len(types) == size:
        raise SettingError(f"it has {len(tokens)} tokens of {len(types)} types for {size} embeddings; fetch it again")
    if len(set(tokens)) < size:
        raise UnsupportedModel("a token that occurs twice is not supported: fetch another file of the model")
    if strange := set(types) - set(TokenType):
        raise UnsupportedModel(f"tokens of type {min(strange)} are not supported: allowed: 1 to 6")

    def named(kind: str) -> int | None:
        found = fields.integer(f"{WITHIN}{kind}_token_id", -1)
        if found >= size:
            raise SettingError(f"field {WITHIN}{kind}_token_id is {found}, allowed: below {size}")
        return None if found < 0 else found

    ends = (named("eos"), named("eot"), named("eom"))
    return Vocabulary(
        tokens=tokens,
        types=types,
        begin=named("bos"),
        ends=tuple(dict.fromkeys(token for token in ends if token is not None)),
        unknown=named("unknown"),
        padding=named("padding"),
    )


def build(fields: Fields, vocabulary: Vocabulary) -> Tokenizer:
    """Return the tokenizer that the file describes. Raises UnsupportedModel if it is of a kind not known here."""
    try:
        return _built(fields, vocabulary)
    except SettingError:
        raise
    except Exception as error:  # what the library raises has no common base
        raise SettingError(f"its tokenizer cannot be built: {error}; fetch the file again") from None


def _built(fields: Fields, vocabulary: Vocabulary) -> Tokenizer:
    kind = fields.text(f"{WITHIN}model")
    if kind == "gpt2":
        tokenizer = _byte_level(fields, vocabulary)
    elif kind == "llama":
        tokenizer = _sentencepiece(fields, vocabulary)
    else:
        raise UnsupportedModel(f"tokenizer {kind!r} is not supported: allowed: gpt2, llama")
    tokenizer.add_special_tokens(vocabulary.added(TokenType.CONTROL))
    tokenizer.add_tokens(vocabulary.added(TokenType.USER_DEFINED))
    if _begins(fields):
        if vocabulary.begin is None:
            raise SettingError("its texts begin with a token, and it names none (bos_token_id); fetch it again")
        name = vocabulary.tokens[vocabulary.begin]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[name, "$A"], pair=[name, "$A", f"{name}:1", "$B:1"], special_tokens=[(name, vocabulary.begin)]
        )
    if fields.flag(f"{WITHIN}add_eos_token", False):
        raise UnsupportedModel("a tokenizer that ends prompts with a token is not supported")
    if tokenizer.get_vocab_size() != len(vocabulary.tokens):
        raise UnsupportedModel("special tokens outside the vocabulary are not supported")
    return tokenizer


def _begins(fields: Fields) -> bool:
    """Return whether texts begin with a token: as the file says, else as llama.cpp does."""
    usual = fields.text(f"{WITHIN}model") == "llama" or fields.text(f"{WITHIN}pre", "") in BEGINS
    return fields.flag(f"{WITHIN}add_bos_token", usual)


def configuration(fields: Fields, vocabulary: Vocabulary, context: int) -> dict[str, Any]:
    """Return tokenizer_config.json."""
    ids = {
        "bos_token": vocabulary.begin,
        "eos_token": vocabulary.ends[0] if vocabulary.ends else None,
        "unk_token": vocabulary.unknown,
        "pad_token": vocabulary.padding,
    }
    template = fields.text("tokenizer.chat_template", "")
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
        **{name: vocabulary.tokens[token] for name, token in ids.items() if token is not None},
        **({"chat_template": template} if template else {}),
    }


def special_ids(vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the ids of special tokens as config.json and generation_config.json have them."""
    ends = vocabulary.ends
    ids = {
        "bos_token_id": vocabulary.begin,
        "eos_token_id": (list(ends) if len(ends) > 1 else ends[0]) if ends else None,
        "pad_token_id": vocabulary.padding,
    }
    return {name: token for name, token in ids.items() if token is not None}


def _byte_level(fields: Fields, vocabulary: Vocabulary) -> Tokenizer:
    if fields.flag(f"{WITHIN}add_space_prefix", False):
        raise UnsupportedModel("a byte-level tokenizer that puts a space before texts is not supported")
    name = fields.text(f"{WITHIN}pre", "default")
    splitting: Splitting | None = BYTE_LEVEL.get(name)
    if splitting is None:
        raise UnsupportedModel(f"pre-tokenizer {name!r} is not supported: allowed: {', '.join(sorted(BYTE_LEVEL))}")
    places = {token: place for place, token in enumerate(vocabulary.tokens)}
    merges: list[tuple[str, str]] = []
    for merge in fields.texts(f"{WITHIN}merges"):
        left, _, right = merge.partition(" ")
        if not {left, right, left + right} <= places.keys():
            raise SettingError(f"merge {merge!r} is not of two tokens that make a third; fetch the file again")
        merges.append((left, right))
    tokenizer = Tokenizer(models.BPE(vocab=places, merges=merges, ignore_merges=splitting.whole_words))
    if splitting.composed:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = splitting.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(fields: Fields, vocabulary: Vocabulary) -> Tokenizer:
    if vocabulary.unknown is None:
        raise SettingError("it names no token for unknown text (unknown_token_id); fetch it again")
    if fields.flag(f"{WITHIN}remove_extra_whitespaces", False):
        raise UnsupportedModel("a tokenizer that takes out white space is not supported")
    places = {token: place for place, token in enumerate(vocabulary.tokens)}
    normal = [of == TokenType.NORMAL for of in vocabulary.types]
    merges = pieces.merges(vocabulary.tokens, fields.numbers(f"{WITHIN}scores").tolist(), normal)
    unknown = vocabulary.tokens[vocabulary.unknown]
    tokenizer = Tokenizer(models.BPE(vocab=places, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    spaced: normalizers.Normalizer = normalizers.Replace(" ", pieces.SPACE)
    steps = [decoders.Replace(pieces.SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if fields.flag(f"{WITHIN}add_space_prefix", True):
        spaced = normalizers.Sequence([normalizers.Prepend(pieces.SPACE), spaced])
        steps.append(decoders.Strip(content=" ", left=1))
    tokenizer.normalizer = spaced
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer
