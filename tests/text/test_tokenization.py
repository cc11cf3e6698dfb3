"""A folder's tokenizer reads prompts as transformers does."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer
from transformers import AutoTokenizer

from covey.text.tokenization import load_tokenizer, token_ids
from tests.bundled import MODELS

TEXT = "one two three four five six seven eight nine ten"


def test_a_length_that_training_left_neither_cuts_nor_pads_a_prompt(tmp_path: Path) -> None:
    left = Tokenizer.from_file(str(MODELS / "target" / "1" / "tokenizer.json"))
    left.enable_truncation(5)
    left.enable_padding(length=64)
    left.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer is not None
    assert token_ids(tokenizer, TEXT).tolist() == AutoTokenizer.from_pretrained(tmp_path)(TEXT)["input_ids"]
