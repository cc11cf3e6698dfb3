"""What a target writes to learn from: by Covey's engine, of its own questions, kept as it comes."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest
import torch

from covey.contracts.errors import SettingError
from covey_training import texts
from covey_training.__main__ import parse
from covey_training.chains import Sample
from covey_training.texts import ITS_OWN, Kept, Written
from covey_training.writer import Text, Writer
from tests.models.tiny_models import build

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<told>{% endif %}"
)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("texts") / "target"
    build(made, "llama", vocab_size=384, num_hidden_layers=2, eos_token_id=[1, 2])
    shutil.copytree(tokenizer_folder, made, dirs_exist_ok=True)
    return made


@pytest.fixture
def chatting(folder: Path, tmp_path: Path) -> Path:
    made = tmp_path / "chatting"
    shutil.copytree(folder, made)
    path = made / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": TEMPLATE}))
    return made


def options(folder: Path, *more: str):  # type: ignore[no-untyped-def]
    words = ["drafter", "--target", str(folder), "--out", "unused", "--tokens", "12", "--window", "96", "--steps", "1"]
    return parse([*words, *more])


def test_a_text_is_the_same_in_any_company_and_ends_where_the_target_ends_it(folder: Path) -> None:
    def written(numbers: range) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        writer = Writer(folder, device="cpu", longest=40)
        asked = (Text([5, 6, 7 + n], 24, n, lambda its, n=n: found.update({n: its})) for n in numbers)  # type: ignore[misc]
        assert sum(writer.write(asked)) == sum(map(len, found.values()))
        return found

    alone = written(range(3, 4)) | written(range(7, 8))
    together = written(range(90))
    assert len(together) == 90, "more than are written at once"
    assert {number: together[number] for number in alone} == alone
    for its in together.values():
        assert len(its) == 24 or its[-1] in (1, 2)
        assert not {1, 2} & set(its[:-1])


def test_a_chat_model_asks_itself_and_answers_in_its_own_form(chatting: Path, tmp_path: Path) -> None:
    target = texts.open_target(str(chatting), CPU, 96)
    windows, held_out = texts.lessons(target, options(chatting, "--samples", "40"), tmp_path / "texts.jsonl")
    assert windows.shape[1] == 96
    assert list(held_out) == [ITS_OWN]
    for sample in held_out[ITS_OWN]:
        said = target.tokenizer.decode(sample.prompt)
        assert said.startswith("<user>")
        assert said.endswith("<told>")
        assert len(said) > len("<user><told>"), "a question"
        assert 0 < len(sample.continuation) <= 12


def test_conversations_of_a_file_are_learnt_after_its_own_texts(chatting: Path, tmp_path: Path) -> None:
    told, kept = tmp_path / "told.jsonl", tmp_path / "texts.jsonl"
    messages = [{"role": "user", "content": "ask"}, {"role": "told", "content": "answer " * 40}]
    told.write_text((json.dumps({"messages": messages}) + "\n") * 9)
    target = texts.open_target(str(chatting), CPU, 96)
    alone, _ = texts.lessons(target, options(chatting, "--samples", "40"), kept)
    more, _ = texts.lessons(target, options(chatting, "--samples", "40", "--texts", str(told)), kept)
    assert more[: len(alone) - 1].tolist() == alone[:-1].tolist()
    last = target.tokenizer.decode(more[-8:].flatten())
    assert f"<user>ask<told>{messages[1]['content']}<user>" in last
    told.write_text('{"messages": 3}\n')
    with pytest.raises(SettingError, match=r"told.jsonl, line 1: no conversation for this chat template"):
        texts.lessons(target, options(chatting, "--samples", "40", "--texts", str(told)), kept)


def test_a_chat_model_answers_the_lines_of_a_file_and_its_own_questions_in_turn(chatting: Path, tmp_path: Path) -> None:
    path = tmp_path / "asked.jsonl"
    path.write_text("".join(json.dumps(f"Line\n{number}?") + "\n" for number in range(20)))
    target = texts.open_target(str(chatting), CPU, 96)
    given = options(chatting, "--samples", "30", "--prompts", str(path))
    _, held_out = texts.lessons(target, given, tmp_path / "texts.jsonl")
    assert {target.tokenizer.decode(one.prompt) for one in held_out["asked.jsonl"]} <= {
        f"<user>Line\n{number}?<told>" for number in (0, 10)
    }
    lines = [json.loads(line) for line in (tmp_path / "texts.jsonl").read_text().splitlines()[1:]]
    groups = {number: group for number, group, *_ in lines}
    assert [groups[number] for number in range(2, 32)] == ["asked.jsonl", ITS_OWN] * 15
    assert [number for number, _, out, *_ in sorted(lines) if out] == [0, 1, 21], "a tenth of either kind"
    taught = {tuple(prompt) for _, group, out, prompt, _ in lines if group == "asked.jsonl" and not out}
    assert len(taught) == 15, "no line twice while there are others"
    path.write_text('"one"\nanother\n')
    with pytest.raises(SettingError, match="got 'another', allowed: a JSON string in each line"):
        texts.lessons(target, given, tmp_path / "other.jsonl")


def test_a_run_goes_on_with_what_is_kept_and_draws_nothing_anew(
    chatting: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, path = texts.open_target(str(chatting), CPU, 96), tmp_path / "texts.jsonl"
    whole = texts.lessons(target, options(chatting, "--samples", "40"), tmp_path / "whole.jsonl")
    texts.lessons(target, options(chatting, "--samples", "20"), path)
    path.write_text(path.read_text() + '[33, "its own questions", false, [1, 2')  # a run was killed while it wrote
    windows, held_out = texts.lessons(target, options(chatting, "--samples", "40"), path)
    assert torch.equal(windows, whole[0])
    assert held_out == whole[1]
    monkeypatch.delattr(texts, "Writer")
    monkeypatch.setattr("covey.models.identity.machine", lambda: ["another"])  # texts are no worse for it
    monkeypatch.setattr("torch.__version__", "another")
    texts.lessons(target, options(chatting, "--samples", "40"), path)
    texts.lessons(target, options(chatting), path, seconds=0.0)
    with pytest.raises(SettingError, match="another target, other settings or another version"):
        texts.lessons(target, options(chatting, "--samples", "40", "--seed", "4"), path)


def test_what_is_under_way_when_time_is_up_is_kept_as_far_as_it_is_of_use(folder: Path) -> None:
    found: dict[int, list[int]] = {}
    writer = Writer(folder, device="cpu", longest=90)
    asked = [Text([5, 6, n], 80, n, lambda its, n=n: found.update({n: its}), partly=n == 7) for n in (7, 8)]  # type: ignore[misc]
    for passes, _ in enumerate(writer.write(iter(asked))):
        if passes == 3:
            break
    writer.cut()
    assert list(found) == [7]
    assert 0 < len(found[7]) <= 5


def test_the_time_ends_it(folder: Path, tmp_path: Path) -> None:
    target, began = texts.open_target(str(folder), CPU, 96), time.monotonic()
    texts.lessons(target, options(folder), tmp_path / "texts.jsonl", seconds=6.0)
    assert time.monotonic() - began < 12
    with pytest.raises(SettingError, match=r"takes .* to load here: give more --minutes"):
        texts.lessons(target, options(folder), tmp_path / "others.jsonl", seconds=1e-3)


def test_texts_that_are_not_saved_yet_are_at_the_end(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "texts.jsonl", "all of it")
    kept.add(4, Written("some", True, Sample([1], [2, 3])))
    kept.save()
    assert Kept(tmp_path / "texts.jsonl", "all of it").texts == kept.texts
