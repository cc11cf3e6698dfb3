"""File locks that show whether another process of this machine is alive. The system releases a lock when the last
process that inherited it has ended."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path


def lock(path: Path) -> int | None:
    """Lock the file and return its descriptor; None if another process holds the lock. Create the file if missing."""
    while True:
        fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)  # the folder may allow others to add links
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.stat(path), os.fstat(fd)):
                return fd
        os.close(fd)  # the last holder removed the file meanwhile
