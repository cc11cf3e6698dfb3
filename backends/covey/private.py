"""Folders that hold what this user's processes run or believe."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from covey.errors import SettingError

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
KEPT_VARIABLE = "COVEY_KEPT"  # the folder in which a server keeps what outlives it: measured curves, learnt state


def kept_folder(part: str) -> Path | None:
    """The part of this server's private folder, which the launcher names; None where none did. Not made yet."""
    named = os.environ.get(KEPT_VARIABLE)
    return Path(named) / part if named else None


def replace(path: Path, text: str) -> None:
    """Write a file whole or not at all, whoever else writes it at the same time. Raises OSError."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as part:
        try:
            part.write(text)
            part.close()
            os.chmod(part.name, 0o644)  # who may read it, its folder says
            os.replace(part.name, path)
        except OSError:
            os.unlink(part.name)
            raise


def private_folder(path: Path) -> Path:
    """Makes the folder, for this user alone; SettingError when one is there that others own or may change."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return checked(path)


def checked(path: Path) -> Path:
    """The folder, which must be there already."""
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise SettingError(f"{path} is no folder but a link or a file: remove it")
    if status.st_uid != os.getuid():
        raise SettingError(f"{path} belongs to another user (its uid is {status.st_uid}): remove it")
    if status.st_mode & OTHERS_WRITE:
        raise SettingError(f"{path} can be changed by other users: remove it, or take their right to write from it")
    return path
