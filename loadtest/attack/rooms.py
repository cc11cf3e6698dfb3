"""Makes two places of a server so small that they can be filled: shared memory, and its private folder.

They are file systems in a separate mount namespace; the machine's are left alone. Needs a superuser.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path

MEMORY, KEPT = "shared_memory", "state_files"
MEGABYTES = {MEMORY: 256, KEPT: 4}
SCRIPT = """
mount -t tmpfs -o size={memory}m,mode=1777 covey /dev/shm
mount -t tmpfs -o size={kept}m,mode=0700 covey "$0"
exec "$@"
"""


def possible() -> bool:
    words = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs covey /mnt"]
    try:
        return subprocess.run(words, capture_output=True, check=False, timeout=20).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def words(kept: Path) -> list[str]:
    """Return the command prefix that runs a command there, with `kept` as one of the two places."""
    script = "set -e" + SCRIPT.format(memory=MEGABYTES[MEMORY], kept=MEGABYTES[KEPT])
    return ["unshare", "--mount", "sh", "-c", script, str(kept)]


class Room:
    """Holds one small place of a living process open until it is left, even if that process ends."""

    def __init__(self, process: int, folder: Path) -> None:
        seen = Path("/proc", str(process), "root") / folder.relative_to("/")
        self._fd = os.open(seen, os.O_RDONLY | os.O_DIRECTORY)
        self.path = Path("/proc/self/fd", str(self._fd))
        self._filler = self.path / "filler"

    def fill(self) -> None:
        """Fill it until there is no byte left."""
        with self._filler.open("wb") as file, suppress(OSError):
            size = 0
            while free := os.statvfs(self.path).f_bavail * os.statvfs(self.path).f_frsize:
                os.posix_fallocate(file.fileno(), size, free)
                size += free

    def empty(self) -> None:
        self._filler.unlink(missing_ok=True)

    def leave(self) -> None:
        os.close(self._fd)
