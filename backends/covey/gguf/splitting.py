"""Byte-level pre-tokenizers by llama.cpp's names: how each cuts text into words before tokens are merged in them. The
patterns are those that the models' makers published in tokenizer.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_REST = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_WORDS = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*"

_TEKKEN = rf"{_CASED}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"


@dataclass(frozen=True, slots=True)
class Splitting:
    """How text is cut into words."""

    pattern: str = ""  # "": GPT-2's own
    digits_apart: bool = False  # every digit is one word
    whole_words: bool = False  # a word that is a token is not merged from its bytes
    composed: bool = False  # text is normalised to NFC

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        steps: list[pre_tokenizers.PreTokenizer] = []
        if self.digits_apart:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        if self.pattern:
            steps.append(pre_tokenizers.Split(Regex(self.pattern), "isolated"))
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not self.pattern))
        return pre_tokenizers.Sequence(steps)


_LLAMA3 = Splitting(rf"{_WORDS}|\p{{N}}{{1,3}}|{_REST}", whole_words=True)
_QWEN2 = Splitting(rf"{_WORDS}|\p{{N}}|{_REST}", composed=True)
_DIGITS = Splitting(digits_apart=True)

BYTE_LEVEL: Mapping[str, Splitting] = {
    "gpt-2": Splitting(),
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "llama-bpe": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": Splitting(_TEKKEN, whole_words=True),
}
