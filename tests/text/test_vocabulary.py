"""Which models speak the same tokens, by their folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, models

from covey.text import vocabulary

WORDS = [f"word{number}" for number in range(300)]


def folder(at: Path, size: int, words: list[str] | None = None, added: tuple[str, ...] = (), first: int = 0) -> Path:
    at.mkdir()
    (at / "config.json").write_text(json.dumps({"vocab_size": size}))
    if words is not None:
        ids = {word: number for number, word in enumerate(words, first)}
        made = Tokenizer(models.WordLevel(ids, unk_token=words[0]))
        made.add_special_tokens([AddedToken(each) for each in added])
        made.save(str(at / "tokenizer.json"))
    return at


@pytest.mark.parametrize(
    ("drafter", "target"),
    [
        *(((one, WORDS), (other, WORDS)) for one, other in [(320, 384), (384, 320), (320, 320), (290, 320)]),
        ((256, WORDS[:250]), (320, WORDS)),
        ((400, [*WORDS, "more", "most"]), (320, WORDS)),
        ((320, WORDS), (320,)),
    ],
)
def test_models_of_one_tokenizer_fit_whatever_their_outputs_are_padded_to(
    drafter: Any, target: Any, tmp_path: Path
) -> None:
    """Ids that one of them lacks need not agree. Where one has no tokenizer, the sizes must be equal."""
    assert vocabulary.misfit(folder(tmp_path / "drafter", *drafter), folder(tmp_path / "target", *target)) == ""


def test_other_added_tokens_are_told_and_do_not_keep_it_from_drafting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = folder(tmp_path / "target", 320, WORDS, ("<end>", "<tool>"))
    assert vocabulary.misfit(folder(tmp_path / "fewer", 384, WORDS, ("<end>",)), target) == ""
    assert not caplog.text
    assert vocabulary.misfit(folder(tmp_path / "others", 384, WORDS, ("<end>", "<think>")), target) == ""
    assert "other added tokens" in caplog.text


@pytest.mark.parametrize(("words", "first"), [([*WORDS[:200], "elsewhere", *WORDS[201:]], 0), (["more", "most"], 300)])
def test_one_id_of_another_text_or_no_common_one_is_another_tokenizer(
    words: list[str], first: int, tmp_path: Path
) -> None:
    target = folder(tmp_path / "target", 320, WORDS)
    other = folder(tmp_path / "other", 320, words, first=first)
    assert vocabulary.misfit(other, target) == f"another tokenizer than {target}"


def test_without_tokenizers_the_sizes_must_be_equal(tmp_path: Path) -> None:
    target = folder(tmp_path / "target", 320)
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
