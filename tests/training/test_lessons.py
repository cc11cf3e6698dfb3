"""Lessons are kept for the target and the tokenizer that they were made with."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from covey_training import __main__ as training
from covey_training import architecture, teacher


def test_lessons_of_another_target_or_tokenizer_are_made_anew(
    data: Path,
    learned: Tokenizer,
    tokenizer_folder: Path,
    tiny_target: LlamaForCausalLM,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = argparse.Namespace(
        out=tmp_path / "models", runs=tmp_path / "runs", data=data, seed=0, samples=4, corpus_tokens=64
    )
    folder = options.out / training.TARGET / "1"
    made: list[int] = []

    def prepare(*_: object, **__: object) -> teacher.Lessons:
        made.append(len(made))
        return teacher.Lessons(torch.full((1, 4), len(made)), torch.zeros(1, 4, 8, dtype=torch.bfloat16))

    monkeypatch.setattr(teacher, "prepare", prepare)

    def read() -> int:
        return int(training.read_lessons("math", tiny_target, learned, options).tokens[0, 0])

    architecture.save_model(tiny_target, options.out, training.TARGET, tokenizer_folder)
    assert [read(), read()] == [1, 1]
    with torch.no_grad():
        tiny_target.get_input_embeddings().weight[3, 3] += 1.0
    architecture.save_model(tiny_target, options.out, training.TARGET, tokenizer_folder)
    assert [read(), read()] == [2, 2]
    with (folder / "tokenizer.json").open("a", encoding="utf-8") as file:
        file.write(" ")
    assert [read(), read()] == [3, 3]
