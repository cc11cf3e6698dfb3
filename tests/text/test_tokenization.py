"""A folder's tokenizer reads prompts as transformers does."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer
from tokenizers.pre_tokenizers import Split
from transformers import AutoTokenizer

from covey.contracts.errors import BadField
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


def test_a_text_that_a_tokenizer_gives_up_on_is_a_wrong_field() -> None:
    tokenizer = load_tokenizer(MODELS / "target" / "1")
    assert tokenizer is not None
    tokenizer.pre_tokenizer = Split(Regex("(?:a|a|aa)+$"), "isolated")
    with pytest.raises(BadField, match=r"text_input: got 'aaa.* allowed: text that the model's tokenizer can cut"):
        token_ids(tokenizer, "a" * 30 + "!")
