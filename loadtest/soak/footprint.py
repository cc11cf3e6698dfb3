"""What a running server takes, by /proc and /dev/shm: each process's resident memory, and its shared memory."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from covey.care import processes
from covey.errors import SettingError
from covey.server.shared_memory import FOLDER

PREFIX = re.compile(r"shm-region-prefix-name=(\S+)")


@dataclass(frozen=True)
class Sample:
    """One look."""

    at: float  # seconds after the start
    resident: dict[str, int]  # bytes by process; one that has ended is missing
    shared: int  # bytes in the regions of this server
    regions: int


class Footprint:
    """Looks at one server on this machine, known by tritonserver's process id."""

    def __init__(self, server: int) -> None:
        self.pids = processes.named(server)
        words = _command_line(server)
        found = next((match[1] for word in words if (match := PREFIX.search(word))), None)
        if found is None:
            raise SettingError(f"process {server} is no tritonserver that Covey started")
        self._prefix = found

    def look(self, at: float) -> Sample:
        resident = {}
        for name, pid in self.pids.items():
            with suppress(psutil.Error):
                resident[name] = psutil.Process(pid).memory_info().rss
        sizes = list(_sizes(self._prefix))
        return Sample(at, resident, sum(sizes), len(sizes))

    def ended(self) -> list[str]:
        """The processes that are no more."""
        return [name for name, pid in self.pids.items() if not processes.lives(pid)]


def _command_line(pid: int) -> list[str]:
    try:
        words: list[str] = psutil.Process(pid).cmdline()
    except psutil.Error:
        raise SettingError(f"no process {pid}: give the id of tritonserver's, on this machine") from None
    return words


def _sizes(prefix: str, folder: Path = FOLDER) -> list[int]:
    sizes = []
    for path in folder.glob(f"{prefix}*"):
        with suppress(OSError):
            sizes.append(path.stat().st_size)
    return sizes
