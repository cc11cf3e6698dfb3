"""What a token is by itself, whatever a tokenizer writes it as."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models

from covey.front.openai.pieces import Offsets, Pieces

FOLDER = Path(__file__).resolve().parents[2] / "model_repository" / "target" / "1"


def sentences() -> Tokenizer:
    """As SentencePiece's are: spaces are a character of their own, and other bytes are spelt."""
    vocab = {"<unk>": 0, "▁a": 1, "b": 2, **{f"<0x{byte:02X}>": 3 + byte for byte in range(256)}}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def test_a_special_token_is_no_part_of_the_text() -> None:
    pieces = Pieces(Tokenizer.from_file(str(FOLDER / "tokenizer.json")))
    end = pieces.of(0)
    assert (end.token, end.shown) == ("<|endoftext|>", False)
    assert Offsets().of([end, end]) == [0, 0]
    unknown = pieces.of(1 << 30)
    assert (unknown.raw, unknown.token) == (b"", f"token_id:{1 << 30}"), "a model may have more ids than its tokenizer"


@pytest.mark.parametrize(
    ("token", "raw", "name"), [(1, b" a", " a"), (2, b"b", "b"), (3 + 0xE2, b"\xe2", f"token_id:{3 + 0xE2}")]
)
def test_spaces_and_spelt_bytes(token: int, raw: bytes, name: str) -> None:
    piece = Pieces(sentences()).of(token)
    assert (piece.raw, piece.token) == (raw, name)
