"""Locked files by which processes of one machine know that another one lives: a lock ends with the last process that
inherited it, however it ends."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path


def lock(path: Path) -> int | None:
    """Lock the file, which is made if it is not there, and return its handle; None if another process has locked it."""
    while True:
        fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)  # some lie where others may put links
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.stat(path), os.fstat(fd)):
                return fd
        os.close(fd)  # whoever had it removed the file meanwhile
