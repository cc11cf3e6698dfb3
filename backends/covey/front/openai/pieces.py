"""The text and bytes of each single token. One character may need the bytes of several tokens.

They come from the tokenizer's own description: decoding a single token replaces partial characters and drops spaces.
"""

from __future__ import annotations

import json
import re
from codecs import getincrementaldecoder
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


@dataclass(frozen=True)
class Piece:
    token: str  # named by its id if it is not text by itself
    raw: bytes
    shown: bool = True  # False for special tokens, which texts do not show


class Pieces:
    """The pieces of one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        decoder = json.loads(tokenizer.to_str())["decoder"] or {}
        steps = [decoder, *decoder.get("decoders", ())]
        kinds = {step.get("type") for step in steps}
        self._by_bytes = _byte_of_character() if "ByteLevel" in kinds else None
        self._fallback = "ByteFallback" in kinds
        self._spaces = [space for step in steps for space in _space(step)]
        self._added = tokenizer.get_added_tokens_decoder()

    def of(self, token: int) -> Piece:
        raw, shown = self._raw(token)
        with suppress(UnicodeDecodeError):
            if raw or token in self._added or self._tokenizer.id_to_token(token) is not None:
                return Piece(raw.decode(), raw, shown)
        return Piece(f"token_id:{token}", raw, shown)

    def _raw(self, token: int) -> tuple[bytes, bool]:
        added, text = self._added.get(token), self._tokenizer.id_to_token(token)
        if added is not None or text is None:  # a model may have more ids than its tokenizer
            return (added.content.encode(), not added.special) if added is not None else (b"", True)
        if self._by_bytes is not None and set(text) <= self._by_bytes.keys():
            return bytes(self._by_bytes[character] for character in text), True
        if self._fallback and (byte := _BYTE.fullmatch(text)):
            return bytes([int(byte[1], 16)]), True
        if self._spaces:
            for space in self._spaces:
                text = text.replace(space, " ")
            return text.encode(), True
        return str(self._tokenizer.decode([token], skip_special_tokens=False)).encode(), True


class Offsets:
    """Counts at which character each token of a text begins. Tokens of one character share its offset."""

    def __init__(self) -> None:
        self._decoder, self._at = getincrementaldecoder("utf-8")("replace"), 0

    def of(self, pieces: Iterable[Piece]) -> list[int]:
        """Return the offsets of the next tokens of the text."""
        found = []
        for piece in pieces:
            found.append(self._at)
            self._at += len(self._decoder.decode(piece.raw)) if piece.shown else 0
        return found


def _byte_of_character() -> dict[str, int]:
    """Return the byte for each character of byte-level tokenizers. Visible Latin-1 characters stand for themselves; the
    other bytes are written, in order, as the characters from 256 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + place): byte for place, byte in enumerate(hidden)}


def _space(step: dict[str, Any]) -> list[str]:
    """Return the character that this step of a decoder turns into a space, if any."""
    if step.get("type") == "Metaspace":
        return [str(step["replacement"])]
    if step.get("type") == "Replace" and step.get("content") == " " and "String" in step["pattern"]:
        return [str(step["pattern"]["String"])]
    return []
