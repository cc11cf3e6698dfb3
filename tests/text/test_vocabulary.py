"""Which models speak the same tokens, by their folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, models

from covey.text import vocabulary

WORDS = [f"word{number}" for number in range(300)]


def folder(at: Path, size: int, words: list[str] | None = None, added: tuple[str, ...] = ()) -> Path:
    at.mkdir()
    (at / "config.json").write_text(json.dumps({"vocab_size": size}))
    if words is not None:
        made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=words[0]))
        made.add_special_tokens([AddedToken(each) for each in added])
        made.save(str(at / "tokenizer.json"))
    return at


@pytest.mark.parametrize("sizes", [(320, 384), (384, 320), (320, 320), (290, 320)])
def test_models_of_one_tokenizer_fit_whatever_their_outputs_are_padded_to(
    sizes: tuple[int, int], tmp_path: Path
) -> None:
    drafter, target = (folder(tmp_path / name, size, WORDS) for name, size in zip("dt", sizes))
    assert vocabulary.misfit(drafter, target) == ""


def test_ids_that_one_of_them_lacks_need_not_agree(tmp_path: Path) -> None:
    target = folder(tmp_path / "target", 320, WORDS)
    assert vocabulary.misfit(folder(tmp_path / "few", 256, WORDS[:250]), target) == ""
    assert vocabulary.misfit(folder(tmp_path / "many", 400, [*WORDS, "more", "most"]), target) == ""


def test_other_added_tokens_are_told_and_do_not_keep_it_from_drafting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = folder(tmp_path / "target", 320, WORDS, ("<end>", "<tool>"))
    assert vocabulary.misfit(folder(tmp_path / "fewer", 384, WORDS, ("<end>",)), target) == ""
    assert not caplog.text
    assert vocabulary.misfit(folder(tmp_path / "others", 384, WORDS, ("<end>", "<think>")), target) == ""
    assert "other added tokens" in caplog.text


def test_tokenizers_without_a_common_id_are_not_one(tmp_path: Path) -> None:
    target = folder(tmp_path / "target", 320, WORDS)
    other = Tokenizer(models.WordLevel({f"word{number}": number for number in range(300, 310)}, unk_token="word300"))
    other.save(str(folder(tmp_path / "other", 320) / "tokenizer.json"))
    assert vocabulary.misfit(tmp_path / "other", target) == f"another tokenizer than {target}"


def test_one_id_of_another_text_is_another_tokenizer(tmp_path: Path) -> None:
    target = folder(tmp_path / "target", 320, WORDS)
    other = [*WORDS[:200], "elsewhere", *WORDS[201:]]
    assert vocabulary.misfit(folder(tmp_path / "other", 320, other), target) == f"another tokenizer than {target}"


def test_without_tokenizers_the_sizes_must_be_equal(tmp_path: Path) -> None:
    target = folder(tmp_path / "target", 320)
    assert vocabulary.misfit(folder(tmp_path / "same", 320, WORDS), target) == ""
    said = f"a vocabulary of 384 tokens, {target} one of 320, and no tokenizers to compare"
    assert vocabulary.misfit(folder(tmp_path / "other", 384), target) == said


@pytest.mark.parametrize("content", [None, {}, {"vocab_size": None}, {"text_config": {}}])
def test_a_size_that_is_not_known_is_no_misfit(content: dict[str, object] | None, tmp_path: Path) -> None:
    """A drafter that runs elsewhere has no folder of its target: the target compares the sizes."""
    target, unknown = folder(tmp_path / "target", 320), tmp_path / "unknown"
    unknown.mkdir()
    if content is not None:
        (unknown / "config.json").write_text(json.dumps(content))
    assert vocabulary.size(unknown) == vocabulary.UNKNOWN
    assert vocabulary.misfit(unknown, target) == vocabulary.misfit(target, unknown) == ""
