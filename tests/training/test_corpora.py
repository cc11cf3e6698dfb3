import ast
import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from covey_training import corpora, teacher, tokenizer
from covey_training.streams import Mixture, Stream

READ_FROM_FILES = ("math", "translation", "summarisation", "chat")


@pytest.mark.parametrize("domain", READ_FROM_FILES)
def test_the_split_shares_no_document(domain: str, data: Path) -> None:
    train, validation = corpora.split(domain, data)
    assert train
    assert not set(train) & set(validation)
    assert sorted(train + validation) == sorted(corpora.documents(domain, data))


def test_no_english_sentence_is_on_both_sides(data: Path) -> None:
    sides = [
        {line for document in side for line in document.split("\n") if line.startswith("English: ")}
        for side in corpora.split("translation", data)
    ]
    assert sides[0]
    assert sides[1]
    assert not sides[0] & sides[1]


def test_math_answers_lose_their_annotations(data: Path) -> None:
    assert all("<<" not in document and "\n####" in document for document in corpora.documents("math", data))


def test_chat_turns_alternate(data: Path) -> None:
    for document in corpora.documents("chat", data):
        speakers = [line.split(":")[0] for line in document.split("\n")]
        assert speakers == ["User", "Assistant", "User"]


def test_source_is_cut_between_statements() -> None:
    source = "import os\n\n" + "".join(f"@decorator\ndef f{n}():\n    return '{'x' * 900}'\n\n" for n in range(8))
    pieces = list(corpora.cut_source(source))
    assert len(pieces) > 1
    assert sum(len(ast.parse(piece).body) for piece in pieces) == 9


def test_a_missing_corpus_says_which(tmp_path: Path) -> None:
    with pytest.raises(corpora.MissingCorpus, match=r"gsm8k_train.jsonl is missing: point --data"):
        corpora.documents("math", tmp_path)


@pytest.mark.parametrize("domain", READ_FROM_FILES)
def test_documents_survive_the_tokenizer(domain: str, data: Path, learned: Tokenizer) -> None:
    for document in corpora.documents(domain, data)[:20]:
        assert learned.decode(learned.encode(document).ids) == document


def test_bytes_never_seen_survive_the_tokenizer(learned: Tokenizer) -> None:
    text = "naïve 漢字 🦆\n\n\tx += 1  # end"
    assert learned.decode(learned.encode(text).ids) == text


def test_the_saved_tokenizer_knows_its_end_and_the_chat_form(tokenizer_folder: Path) -> None:
    loaded = AutoTokenizer.from_pretrained(tokenizer_folder)
    assert loaded.eos_token == tokenizer.END_OF_TEXT
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "x"},
    ]
    text = loaded.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "User: Hi\nAssistant: Yes?\nUser: x\nAssistant:"


@pytest.mark.parametrize("domain", READ_FROM_FILES)
def test_cut_prompts_end_where_prompts_end(domain: str, data: Path) -> None:
    marker = {"math": "Answer:", "translation": "German:", "summarisation": "Summary:", "chat": "Assistant:"}[domain]
    order = random.Random(0)
    for document in corpora.documents(domain, data)[:20]:
        assert teacher.cut_prompt(domain, document, order).endswith("\n" + marker)


def test_a_stream_is_the_same_however_it_is_read(streams: dict[str, Stream]) -> None:
    stream = streams["math"]
    length = 3 * stream.tokens
    whole = stream.read(0, length).tolist()
    order, cursor = random.Random(0), 0
    while cursor < length:
        count = min(order.randint(1, 500), length - cursor)
        assert stream.read(cursor, count).tolist() == whole[cursor : cursor + count]
        cursor += count
    assert sorted(whole[: stream.tokens]) == sorted(whole[stream.tokens : 2 * stream.tokens])


def test_domains_take_turns(streams: dict[str, Stream]) -> None:
    mixture = Mixture(streams)
    mixture.batch(3, 10)
    mixture.batch(3, 10)
    assert mixture.cursors == {"math": 30, "chat": 30}
