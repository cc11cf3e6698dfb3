"""Locked files: who has one, and what is no file of ours."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from covey.process.lock import lock


def test_one_has_it(tmp_path: Path) -> None:
    own = lock(tmp_path / "own")
    assert own is not None
    assert lock(tmp_path / "own") is None
    os.close(own)
    assert lock(tmp_path / "own") is not None


def test_a_link_that_somebody_put_there_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "made")
    with pytest.raises(OSError, match="symbolic links"):
        lock(tmp_path / "link")
    assert not (tmp_path / "made").exists()
