"""Tiny corpora in each domain's form, a tokenizer learned from them and a tiny target; no outside data."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from covey_training import architecture, corpora, tokenizer
from covey_training.streams import Stream, encode

WORDS = ["red", "green", "house", "tree", "river", "seven", "three", "walk", "sing", "open", "Straße", "grün"]
TINY = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_key_value_heads": 1}


def sentence(order: random.Random) -> str:
    return " ".join(order.choices(WORDS, k=order.randint(4, 9))).capitalize() + "."


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpora's files as `covey_training.corpora` reads them, sixty documents each."""
    folder = tmp_path_factory.mktemp("data")
    order = random.Random(1)
    for name in ("math", "translation", "summarisation", "chat"):
        (folder / name).mkdir()
    problems = [
        {"question": sentence(order), "answer": f"2+{n} = <<2+{n}={2 + n}>>{2 + n}\n#### {2 + n}"} for n in range(60)
    ]
    (folder / "math" / "gsm8k_train.jsonl").write_text("\n".join(map(json.dumps, problems)), encoding="utf-8")
    pairs = [f"{sentence(order)}\t{sentence(order)}" for _ in range(300)]
    pairs += [f"{pair.split(chr(9))[0]}\t{sentence(order)}" for pair in pairs]
    papers = [{"source": [sentence(order), sentence(order)], "target": [sentence(order)]} for _ in range(60)]
    turns = [1, 2, 2, 1]
    talks = {
        str(n): {"content": [{"agent": f"agent_{t}", "message": sentence(order)} for t in turns]} for n in range(60)
    }
    for path, text in (
        ("translation/tatoeba_en_de.tsv.gz", "\n".join(pairs)),
        ("summarisation/scitldr_train.jsonl.gz", "\n".join(map(json.dumps, papers))),
        ("chat/topical_chat_valid_freq.json.gz", json.dumps(talks)),
    ):
        (folder / path).write_bytes(gzip.compress(text.encode()))
    return folder


@pytest.fixture(scope="session")
def learned(data: Path) -> Tokenizer:
    domains = ("math", "translation", "summarisation", "chat")
    return tokenizer.train((corpora.documents(domain, data) for domain in domains), vocabulary=384)


@pytest.fixture(scope="session")
def tokenizer_folder(learned: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(learned, folder, max_length=architecture.POSITIONS)
    return folder


@pytest.fixture(scope="session")
def streams(data: Path, learned: Tokenizer) -> dict[str, Stream]:
    return {name: Stream(encode(learned, corpora.documents(name, data), 0), 3) for name in ("math", "chat")}


@pytest.fixture
def tiny_target() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return architecture.target(384, 0, num_hidden_layers=2, **TINY)


@pytest.fixture
def tiny_drafter() -> LlamaForCausalLM:
    torch.manual_seed(1)
    return architecture.drafter(384, 0, num_hidden_layers=1, **TINY)
