"""A folder whose content is run or believed is this user's alone."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from covey.contracts.errors import SettingError
from covey.process.private import KEPT_VARIABLE, kept_folder, private_folder
from covey_client import files


def test_a_folder_is_made_for_this_user_alone_and_one_that_others_may_change_is_refused(tmp_path: Path) -> None:
    made = private_folder(tmp_path / "a" / "b")
    assert made.stat().st_mode & 0o777 == 0o700
    made.chmod(0o755)
    assert private_folder(made) == made, "others may look"
    for mode in (0o777, 0o775, 0o1777):
        made.chmod(mode)
        with pytest.raises(SettingError, match="can be changed by other users"):
            private_folder(made)


def test_a_link_and_another_user_s_folder_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "own")
    with pytest.raises(SettingError, match="is no folder but a link"):
        private_folder(tmp_path / "link")
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)
    with pytest.raises(SettingError, match="belongs to another user"):
        private_folder(tmp_path / "own")


def test_what_is_kept_lies_where_the_launcher_says_or_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEPT_VARIABLE, raising=False)
    assert kept_folder("curves") is None
    monkeypatch.setenv(KEPT_VARIABLE, str(tmp_path))
    assert kept_folder("curves") == tmp_path / "curves"


def test_a_file_is_written_whole_whoever_else_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    files.replace(path, "one")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda count: files.replace(path, str(count) * 50_000), [3] * 8))
    assert path.read_text() == "3" * 50_000
    assert [each.name for each in tmp_path.iterdir()] == ["kept.json"]
