"""Documents of each domain in the form that `covey.prompts` describes, and their split; knows no tokenizer or model."""

from __future__ import annotations

import ast
import gzip
import hashlib
import json
import random
import re
import sysconfig
from collections.abc import Callable, Iterator
from functools import cache
from itertools import groupby
from pathlib import Path

from covey.prompts import DOMAINS
from covey_training import edits as editing

CODE_MARKER = "# Python\n"
CODE_PIECE_CHARACTERS = 3000
PASSAGE_CHARACTERS = 900
FORMS = 3000
PAIRS_PER_DOCUMENT = (2, 9)
HELD_OUT_SHARE = 0.03
# Tests, generated tables and programs whose source says little about how Python is written.
CODE_EXCLUDED = {
    "test", "tests", "idlelib", "lib2to3", "site-packages", "encodings", "pydoc_data", "turtledemo", "ensurepip",
    "__phello__", "__pycache__", "lib-dynload",
}  # fmt: skip
GSM8K_ANNOTATION = re.compile(r"<<[^>]*>>")


class MissingCorpus(FileNotFoundError):
    """A corpus file is not where `--data` says."""


def documents(domain: str, data: Path) -> list[str]:
    """Return every document of a domain, in an order that depends on the files alone."""
    return list(dict.fromkeys(READERS[domain](data)))


@cache  # edits take ten seconds, and every step of a run asks
def split(domain: str, data: Path) -> tuple[list[str], list[str]]:
    """Return (train, validation); which one a document is in depends on its text alone."""
    train: list[str] = []
    validation: list[str] = []
    for document in documents(domain, data):
        (validation if held_out(split_key(domain, document)) else train).append(document)
    return train, validation


def held_out(key: str) -> bool:
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < HELD_OUT_SHARE * 2**64


def split_key(domain: str, document: str) -> str:
    """Return what must not be on both sides of the split.

    A translation document groups pairs that are already on one side, so its first English sentence speaks for all; of
    an edit it is what was edited.
    """
    if domain == "edits":
        return editing.source_key(document)
    return document.split("\n", 1)[0].removeprefix("English: ") if domain == "translation" else document


def code(_: Path) -> Iterator[str]:
    """Yield the running interpreter's standard library, cut between top-level statements."""
    for source in library_sources():
        yield from (CODE_MARKER + piece for piece in cut_source(source))


def library_sources() -> Iterator[str]:
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        if not CODE_EXCLUDED.isdisjoint(path.relative_to(root).parts):
            continue
        source = path.read_text(encoding="utf-8", errors="replace")
        if source.isascii():
            yield source


def cut_source(source: str) -> Iterator[str]:
    """Yield pieces of about CODE_PIECE_CHARACTERS, none of which begins inside a top-level statement."""
    try:
        body = ast.parse(source).body
    except SyntaxError:
        return
    lines = source.splitlines(keepends=True)
    starts = [0] + [min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]) - 1 for node in body]
    piece = ""
    for start, end in zip(starts, [*starts[1:], len(lines)]):
        piece += "".join(lines[start:end])
        if len(piece) >= CODE_PIECE_CHARACTERS:
            yield piece.strip() + "\n"
            piece = ""
    if piece.strip():
        yield piece.strip() + "\n"


def math(data: Path) -> Iterator[str]:
    for line in read(data / "math" / "gsm8k_train.jsonl").splitlines():
        row = json.loads(line)
        answer = GSM8K_ANNOTATION.sub("", row["answer"])
        yield f"Question: {row['question'].strip()}\nAnswer: {answer.strip()}"


def translation(data: Path) -> Iterator[str]:
    """Yield pairs grouped within each side of the split: one English sentence often has several translations."""
    sides: dict[bool, list[str]] = {False: [], True: []}
    for line in read(data / "translation" / "tatoeba_en_de.tsv.gz").splitlines():
        english, german = line.split("\t")[:2]
        sides[held_out(english)].append(f"English: {english}\nGerman: {german}")
    for pairs in sides.values():
        order = random.Random(0)
        order.shuffle(pairs)
        while pairs:
            size = order.randint(*PAIRS_PER_DOCUMENT)
            yield "\n".join(pairs[-size:])
            del pairs[-size:]


def summarisation(data: Path) -> Iterator[str]:
    for line in read(data / "summarisation" / "scitldr_train.jsonl.gz").splitlines():
        row = json.loads(line)
        yield f"Abstract: {' '.join(row['source']).strip()}\nSummary: {row['target'][0].strip()}"


def chat(data: Path) -> Iterator[str]:
    for path in sorted((data / "chat").glob("topical_chat_*.json.gz")):
        for conversation in json.loads(read(path)).values():
            turns = groupby(conversation["content"], lambda turn: turn["agent"])  # one speaker's messages are one turn
            messages = [" ".join(" ".join(turn["message"].split()) for turn in said) for _, said in turns]
            speakers = ("User", "Assistant")
            yield "\n".join(f"{speakers[index % 2]}: {message}" for index, message in enumerate(messages))
    if not any((data / "chat").glob("topical_chat_*.json.gz")):
        raise MissingCorpus(f"no topical_chat_*.json.gz in {data / 'chat'}: point --data at the corpora")


def edits(data: Path) -> Iterator[str]:
    """Yield edits of the standard library's functions, of the summarisation's abstracts, and forms."""
    yield from editing.edited_functions(editing.functions_of(library_sources()))
    for document in summarisation(data):
        abstract = document.removeprefix("Abstract: ").split("\nSummary:")[0]
        yield from editing.edited_passages([abstract[:PASSAGE_CHARACTERS].rsplit(". ", 1)[0] + "."])
    yield from editing.edited_forms(FORMS)


def read(path: Path) -> str:
    if not path.is_file():
        raise MissingCorpus(f"{path} is missing: point --data at the corpora")
    raw = path.read_bytes()
    return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")


READERS: dict[str, Callable[[Path], Iterator[str]]] = {
    "code": code,
    "math": math,
    "translation": translation,
    "summarisation": summarisation,
    "chat": chat,
    "edits": edits,
}
assert tuple(READERS) == DOMAINS
