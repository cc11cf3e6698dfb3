"""What was found about a machine's numerics is kept, and found again where what it rests on has changed."""

from __future__ import annotations

import ast
import logging
from pathlib import Path

import pytest
import torch

from covey.models import model as paged
from covey.models import verdicts
from covey.models.attention import Tiling
from covey.models.model import PagedModel
from covey.models.verdicts import here, verdict
from covey.process.private import KEPT_VARIABLE
from tests.models.tiny_models import build


class Asked:
    """Counts how often it had to be found out."""

    def __init__(self, answer: Tiling | None) -> None:
        self.answer, self.times = answer, 0

    def __call__(self) -> Tiling | None:
        self.times += 1
        return self.answer


@pytest.mark.parametrize("answer", [Tiling(4, 2, 32, 128), None])
def test_a_verdict_is_found_once(tmp_path: Path, answer: Tiling | None) -> None:
    asked = Asked(answer)
    for _ in range(2):
        assert verdict(tmp_path / "numerics", "a", asked, Tiling) == answer
    assert asked.times == 1
    assert verdict(tmp_path / "numerics", "b", asked, Tiling) == answer
    assert asked.times == 2
    assert verdict(None, "a", asked, Tiling) == answer
    assert asked.times == 3


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"tiling": {"rows": 1, "columns": 2}}', "\x00"])
def test_what_is_no_verdict_is_found_again(tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.json").write_text(content)
    asked = Asked(Tiling(2))
    with caplog.at_level(logging.WARNING):
        assert verdict(tmp_path, "a", asked, Tiling) == Tiling(2)
    assert "is not a verdict" in caplog.text
    assert verdict(tmp_path, "a", asked, Tiling) == Tiling(2)
    assert asked.times == 1


def test_a_folder_that_cannot_be_written_costs_time_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING):
        assert verdict(tmp_path / "file" / "numerics", "a", Asked(Tiling(2)), Tiling) == Tiling(2)
    assert "cannot keep" in caplog.text


def test_facts_threads_and_settings_are_part_of_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {here("a", 1), here("a", 2), here("b", 1)}
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    keys.add(here("a", 1))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    keys.add(here("a", 1))
    assert len(keys) == 5
    assert here("a", 1) in keys


def test_a_model_goes_by_what_was_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = build(tmp_path / "model", "llama", num_hidden_layers=1)
    monkeypatch.setenv(KEPT_VARIABLE, str(tmp_path / "kept"))
    first = PagedModel(folder, dtype="float32", blocks=20)
    assert first.numerics == "invariant"
    monkeypatch.setattr(paged, "passes_agree", lambda *_: False)
    assert PagedModel(folder, dtype="float32", blocks=20).numerics == "invariant"
    assert PagedModel(folder, dtype="float32", blocks=20, max_pass_tokens=99).numerics == "fast"
    monkeypatch.undo()
    assert (
        PagedModel(folder, dtype="float32", blocks=20, max_pass_tokens=99).numerics == "invariant"
    )  # nothing was kept of it here


def test_it_rests_on_all_code_that_computes_a_pass() -> None:
    """Whatever `model.py` comes to by imports and has torch."""
    folder, computing, left = Path(paged.__file__).parent, set[str](), ["model.py"]
    seen = set(left)
    while left:
        name = left.pop()
        for each in ast.parse((folder / name).read_text()).body:
            if isinstance(each, ast.Import) and "torch" in [alias.name for alias in each.names]:
                computing.add(name)
            named = [f"covey.models.{alias.name}" for alias in each.names] if isinstance(each, ast.ImportFrom) else []
            named += [each.module or ""] if isinstance(each, ast.ImportFrom) else []
            found = {f"{every.rpartition('.')[2]}.py" for every in named if every.startswith("covey.models.")} - seen
            left += [every for every in found if (folder / every).is_file()]
            seen |= found
    assert "attention.py" in computing <= set(verdicts._SOURCES)
