"""The tokenizer of a written folder gives the tokens of the tokenizer that the file was made from."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from covey.contracts.errors import SettingError
from covey.gguf import folder
from covey.text import model_folder
from covey.text.tokenization import load_tokenizer
from tests.gguf import written

HARD = (
    "",
    " leading, trailing and  double spaces ",
    "12345 3.14159 2026-11-28 x1y22z333 \u0663\u0664",
    "def f(x):\n\treturn  x ** 2\n\n\n    # done\r\n",
    "don't WE'LL they'Ve I'd CamelCaseWords HTTPServer",
    "\U0001f642\U0001f469\u200d\U0001f680 naïve cafe\u0301 Ünïcödé",
    "日本語のテキスト と 中文,한국어。",
    "a/b/c\\d --flag=1 $HOME; <html></html> {}[]!!!\n/path",
    "   \n \t\n  ...\u00a0\u2003x",
    "<begin>user<tool>\nhell<end>hello",
)
CORPUS = [
    *HARD,
    "the quick brown fox jumps over the lazy dog. Hello hello, there 12 123 1234! ",
    "return x if y else z\n",
]
# The makers' tokenizer.json say this.
GPT2 = [{"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}]
DIGITS = [{"type": "Digits", "individual_digits": True}, *GPT2]
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def by_pattern(pattern: str) -> list[dict[str, Any]]:
    return [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
    ]


def trained(steps: list[dict[str, Any]], ignore_merges: bool, nfc: bool) -> Tokenizer:
    """Return a small tokenizer of this kind with the special tokens of a chat model."""
    tokenizer = Tokenizer(models.BPE())
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([piece(step) for step in steps])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, special_tokens=["<end>", "<begin>"])
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    tokenizer.add_tokens(["<tool>"])
    content = json.loads(tokenizer.to_str())
    content["model"]["ignore_merges"] = ignore_merges
    content["decoder"] = GPT2[0]
    content["model"]["vocab"]["<tool>"] = len(content["model"]["vocab"])
    return Tokenizer.from_str(json.dumps(content))


def piece(step: dict[str, Any]) -> pre_tokenizers.PreTokenizer:
    if step["type"] == "Split":
        return pre_tokenizers.Split(Regex(step["pattern"]["Regex"]), "isolated")
    if step["type"] == "Digits":
        return pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=step["use_regex"])


def fields(tokenizer: Tokenizer, pre: str) -> dict[str, Any]:
    content = json.loads(tokenizer.to_str())
    vocabulary = content["model"]["vocab"]
    kinds = {"<end>": 3, "<begin>": 3, "<tool>": 4}
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    return {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": [kinds.get(token, 1) for token in tokens],
        "merges": [" ".join(merge) for merge in content["model"]["merges"]],
        "bos_token_id": 1,
        "eos_token_id": 0,
    }


def converted(at: Path, vocabulary: dict[str, Any]) -> Tokenizer:
    of = written.model("llama", vocab_size=len(vocabulary["tokens"]), num_hidden_layers=1)
    folder.write(written.tiny(at / "tiny.gguf", of=of, vocabulary=vocabulary), at / "folder")
    tokenizer = load_tokenizer(at / "folder")
    assert tokenizer is not None
    return tokenizer


@pytest.mark.parametrize(
    ("pre", "steps", "ignore_merges", "nfc"),
    [
        ("gpt-2", GPT2, False, False),
        ("smollm", DIGITS, False, False),
        ("llama-bpe", by_pattern(LLAMA3), True, False),
        ("qwen2", by_pattern(QWEN2), False, True),
        ("tekken", by_pattern(TEKKEN), True, False),
    ],
)
def test_byte_level_tokens_are_those_of_the_published_tokenizer(
    pre: str, steps: list[dict[str, Any]], ignore_merges: bool, nfc: bool, tmp_path: Path
) -> None:
    original = trained(steps, ignore_merges, nfc)
    its = converted(tmp_path, fields(original, pre) | {"add_bos_token": False})
    for text in HARD:
        ids = original.encode(text).ids
        assert its.encode(text).ids == ids, text
        assert its.decode(ids, skip_special_tokens=False) == original.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize(
    ("said", "begins"), [({"add_bos_token": True}, True), ({"add_bos_token": False}, False), ({}, False)]
)
def test_texts_begin_as_the_file_says(said: dict[str, Any], begins: bool, tmp_path: Path) -> None:
    tokenizer = converted(tmp_path, written.BYTE_LEVEL | said | {"chat_template": "{{ messages }}", "eot_token_id": 5})
    hell = written.TOKENS.index("hell")
    assert tokenizer.encode("hell<end>").ids == [1] * begins + [hell, 0]
    settings = json.loads((tmp_path / "folder" / "tokenizer_config.json").read_text())
    assert (settings["bos_token"], settings["eos_token"]) == ("<begin>", "<end>")
    assert settings["chat_template"] == "{{ messages }}"
    assert json.loads((tmp_path / "folder" / "generation_config.json").read_text())["eos_token_id"] == [0, 5]


def test_what_the_makers_recommend_is_kept(tmp_path: Path) -> None:
    recommended = {"general__sampling__temp": 0.2, "general__sampling__top_k": 20, "general__sampling__mirostat": 0}
    file = written.tiny(tmp_path / "tiny.gguf", of=written.model("llama", num_hidden_layers=1), **recommended)
    folder.write(file, tmp_path / "its")
    folder.write(file, tmp_path / "other", sampling={"top_p": 0.9})
    assert model_folder.read(tmp_path / "its").sampling == {"temperature": 0.2, "top_k": 20}
    assert model_folder.read(tmp_path / "other").sampling == {"top_p": 0.9}


PIECES = ["▁", "t", "h", "e", "a", "n", "x", "y", "th", "the", "▁the", "▁t", "an", "▁an", "na", "ana", "nan", "xx"]
PIECES += ["xxx", "xxxx", "▁▁", "▁▁▁▁", "he", "hen", "then", "▁x", "en", "ne", "ee", "eee"]
BASE = ["<unk>", "<begin>", "<end>", *(f"<0x{byte:02X}>" for byte in range(256)), "<tag>", "\n\n"]


def sentencepiece(order: list[str]) -> dict[str, Any]:
    return {
        "model": "llama",
        "tokens": [*BASE, *order],
        "token_type": [2, 3, 3, *[6] * 256, 4, 4, *[1] * len(order)],
        "scores": [*[0.0] * len(BASE), *(-float(rank) for rank in range(len(order)))],
        "unknown_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def merged(text: str, said: dict[str, Any]) -> list[int]:
    """Return the tokens by SentencePiece's rule. Merge the two neighbours whose piece has the highest score, the
    leftmost pair among equals, until no pair is a piece. A character that is no piece becomes its bytes."""
    places = {token: place for place, token in enumerate(said["tokens"]) if said["token_type"][place] == 1}
    parts = list(text)
    while True:
        made = [(at, parts[at] + parts[at + 1]) for at in range(len(parts) - 1)]
        pairs = [(said["scores"][places[pair]], -at) for at, pair in made if pair in places]
        if not pairs:
            break
        at = -max(pairs)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return [
        token
        for part in parts
        for token in ([places[part]] if part in places else [3 + byte for byte in part.encode()])
    ]


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_tokens_are_merged_by_scores(prefix: bool, tmp_path: Path) -> None:
    said = sentencepiece(PIECES) | {"add_space_prefix": prefix, "add_bos_token": True}
    tokenizer, draw = converted(tmp_path, said), random.Random(5)
    texts = ["the then hen  xxxxx    ana", *("".join(draw.choices("thenax   é中", k=24)) for _ in range(200))]
    for text in texts:
        spaced = (" " * prefix + text).replace(" ", "▁")
        assert tokenizer.encode(text).ids == [1, *merged(spaced, said)], text
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    tag = said["tokens"].index("<tag>")
    x = merged("▁x" if prefix else "x", said)
    assert tokenizer.encode("x<tag>\n\nx").ids[1:] == [*x, tag, tag + 1, *x]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"pre": "deepseek-llm"}, "pre-tokenizer 'deepseek-llm' is not supported: allowed: .*llama-bpe"),
        ({"pre": None}, "pre-tokenizer 'default' is not supported"),
        ({"model": "bert"}, "tokenizer 'bert' is not supported"),
        ({"add_space_prefix": True}, "a space before texts"),
        ({"add_eos_token": True}, "ends prompts with a token"),
        ({"add_bos_token": True, "bos_token_id": None}, "begin with a token, and it names none"),
        ({"eos_token_id": 999_999}, "eos_token_id is 999999, allowed: below"),
        ({"merges": ["h e", "q q"]}, "merge 'q q' is not of two tokens"),
        ({"tokens": ["<end>", *written.TOKENS[:-1]]}, "a token that occurs twice"),
        ({"tokens": [*written.TOKENS, "more"]}, "tokens of .* types for .* embeddings"),
        ({"token_type": [9] * len(written.TOKENS)}, "tokens of type 9"),
        ({"merges": None}, "no field tokenizer.ggml.merges"),
        ({"tokens": "none"}, "tokenizer.ggml.tokens is 'none', allowed: a list of texts"),
    ],
)
def test_a_tokenizer_that_is_not_known_is_refused(changed: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=why):
        converted(tmp_path, written.BYTE_LEVEL | changed)
    assert not (tmp_path / "folder").exists()


def test_pieces_whose_order_is_not_known_are_refused(tmp_path: Path) -> None:
    said = sentencepiece(PIECES)
    said["scores"] = [0.0] * len(said["scores"])
    with pytest.raises(SettingError, match="two SentencePiece tokens of one score"):
        converted(tmp_path, said)
