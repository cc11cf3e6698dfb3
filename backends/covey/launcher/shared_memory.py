"""Names the shared memory of a server, so that regions of a killed server can be told from those of a living one.

A server's regions are called `covey_<port>_<random>_...`. The file `covey_<port>_<random>_lock` goes with them. The
launcher locks it, and tritonserver and its stubs inherit the lock. If the lock is free, none of these processes lives.
"""

from __future__ import annotations

import os
import re
import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from covey.process.lock import lock

FOLDER = Path("/dev/shm")
LOCK = re.compile(r"(covey_\d+_[0-9a-f]{8}_)lock")


@dataclass(frozen=True)
class Claim:
    """The right to one prefix, held until every process that inherited `fd` has closed it."""

    prefix: str
    fd: int
    folder: Path

    def release(self) -> None:
        """Close this end and remove the prefix's regions. Call it only after the server's processes have ended."""
        os.close(self.fd)
        remove(self.prefix, self.folder)


def claim(port: int, folder: Path = FOLDER) -> Claim:
    """Return a fresh, locked prefix."""
    while True:
        prefix = f"covey_{port}_{secrets.token_hex(4)}_"
        fd = lock(folder / f"{prefix}lock")
        if fd is not None:
            return Claim(prefix, fd, folder)


def sweep(folder: Path = FOLDER) -> tuple[str, ...]:
    """Remove the regions of ended servers. Return their names without those of locks."""
    removed: list[str] = []
    for path in sorted(folder.glob("covey_*_lock")):
        match = LOCK.fullmatch(path.name)
        if match is None:
            continue
        with suppress(OSError):  # another user's
            fd = lock(path)
            if fd is not None:
                removed += remove(match[1], folder)
                os.close(fd)
    return tuple(removed)


def open_to_others(prefix: str) -> bool:
    """Return whether other users may read a region with this prefix."""
    return any(path.stat().st_mode & 0o077 for path in FOLDER.glob(f"{prefix}*"))


def remove(prefix: str, folder: Path = FOLDER) -> list[str]:
    """Remove the regions with this prefix and return their names. Call it only after the processes that use them have
    ended."""
    regions = [path for path in folder.glob(f"{prefix}*") if not path.name.endswith("_lock")]
    for path in [*regions, folder / f"{prefix}lock"]:  # the lock last, so that an interrupted sweep can be repeated
        path.unlink(missing_ok=True)
    return [path.name for path in regions]
