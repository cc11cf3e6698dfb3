"""A revoked key opens nothing, whatever happens to the file of keys."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from covey.contracts.errors import SettingError
from covey.front.failures import NoKey, kind
from covey.front.keys import Keys, hashed
from covey_client.errors import Overloaded

OLD, NEW = f"old {hashed('of old')}\n", f"new {hashed('of new')}\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "keys"
    made.write_text(OLD)
    made.chmod(0o600)
    return made


def replaced(path: Path, text: str) -> None:
    beside = path.with_suffix(".new")
    beside.write_text(text)
    beside.chmod(0o600)
    beside.replace(path)


@pytest.mark.parametrize(
    "hurt",
    [
        Path.unlink,
        lambda path: replaced(path, NEW[:-10]),
        lambda path: replaced(path, NEW + NEW),
        lambda path: path.write_bytes(b"\xff\xfe"),
        lambda path: path.chmod(0o604),
        lambda path: (path.unlink(), path.mkdir()),
        lambda path: (path.unlink(), os.mkfifo(path, 0o600)),
    ],
    ids=["removed", "half-written", "twice", "no text", "readable by others", "a folder", "a pipe"],
)
def test_nobody_has_a_key_while_the_file_cannot_be_read(path: Path, hurt: Callable[[Path], object]) -> None:
    keys = Keys(str(path))
    hurt(path)
    for _ in range(2):
        with pytest.raises(Overloaded, match="cannot read its file of keys now") as caught:
            keys.owner("Bearer of old")
        assert kind(caught.value).http == 503
    with pytest.raises(SettingError):
        Keys(str(path))
    if path.is_dir():
        path.rmdir()
    replaced(path, OLD)
    assert keys.owner("Bearer of old").name == "old"


@pytest.mark.parametrize(
    "line",
    [
        f"{'n' * 257} {hashed('a')}",
        *(f"one {hashed('a')} {rest}" for rest in ("-1", "nan", "2e6", "1 -1", "1 1 1", "x")),
    ],
)
def test_what_no_key_may_say_is_refused_by_its_line(path: Path, line: str) -> None:
    replaced(path, f"{OLD}{line}\n")
    with pytest.raises(SettingError, match="line 2"):
        Keys(str(path))


def test_a_key_that_was_revoked_by_who_keeps_time_stamps(path: Path) -> None:
    """As `rsync --inplace --times` may; the file is of the same size, too."""
    keys, said = Keys(str(path)), path.stat()
    path.write_text(NEW)
    os.utime(path, ns=(said.st_mtime_ns, said.st_mtime_ns))
    with pytest.raises(NoKey):
        keys.owner("Bearer of old")
    assert keys.owner("Bearer of new").name == "new"
