"""What a model remembers over its own death, and forgets with its server."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from covey.tritonio import link
from covey.tritonio.remembered import Remembered


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_the_next_process_of_a_model_knows_and_the_next_server_does_not() -> None:
    assert Remembered("covey").recall() == {}
    Remembered("covey").remember({"draft_a": 12, "draft_b": 1 << 40})
    assert Remembered("covey").recall() == {"draft_a": 12, "draft_b": 1 << 40}
    assert Remembered("other").recall() == {}
    link.forget(os.getppid())
    assert Remembered("covey").recall() == {}


def test_another_server_of_the_same_process_id_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    Remembered("covey").remember({"draft_a": 12})
    monkeypatch.setattr("covey.tritonio.remembered.started", lambda _server: 1)
    assert Remembered("covey").recall() == {}


@pytest.mark.parametrize("text", ["", "[", "[" * 100_000, "[]", "{}", '{"server": 1}', "7"])
def test_a_damaged_file_is_no_memory(text: str) -> None:
    Remembered("covey").remember({"draft_a": 12})
    link.address("covey.json", os.getppid()).write_text(text)
    assert Remembered("covey").recall() == {}


def test_a_folder_that_others_may_change_is_not_believed() -> None:
    Remembered("covey").remember({"draft_a": 12})
    link.address("covey.json", os.getppid()).parent.chmod(0o777)
    assert Remembered("covey").recall() == {}
