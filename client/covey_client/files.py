"""Writes and checks files that this user's servers and tools on one machine share."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def replace(path: Path, content: str | bytes, mode: int = 0o644) -> None:
    """Write a file whole or not at all, even if others write it at the same time. Raises OSError."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as part:
        try:
            part.write(content.encode() if isinstance(content, str) else content)
            part.close()
            os.chmod(part.name, mode)  # by default the folder limits its readers
            os.replace(part.name, path)
        except OSError:
            os.unlink(part.name)
            raise


def distrust(path: Path) -> str:
    """Return why others may have written to a folder; "" if they cannot. Raises FileNotFoundError."""
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        return f"{path} is no folder but a link or a file: remove it"
    if status.st_uid != os.getuid():
        return f"{path} belongs to another user (its uid is {status.st_uid}): remove it"
    if status.st_mode & OTHERS_WRITE:
        return f"{path} can be changed by other users: remove it, or take their right to write from it"
    return ""
