"""Processor time of the server's processes and of this one, from /proc. Linux only; empty elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from covey.care import processes

PROC = Path("/proc")
TICK = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class Meter:
    """Reads how much processor time a server's processes, named by their models, this one and others have used."""

    def __init__(self, server: int, **others: int) -> None:
        self._pids = {"client": os.getpid(), **others, **processes.named(server)}

    def read(self) -> dict[str, float]:
        seconds = {}
        for name, pid in self._pids.items():
            with suppress(OSError):  # a process that has ended
                seconds[name] = _cpu_seconds(pid)
        return seconds

    def idle_share(self, seconds: float = 1.0) -> float:
        """Cores in use by the server while nobody asks it for anything."""
        before = self.read()
        time.sleep(seconds)
        used = spent(before, self.read())
        return sum(value for name, value in used.items() if name != "client") / seconds


def spent(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {name: round(after[name] - before[name], 3) for name in before if name in after}


def _cpu_seconds(pid: int) -> float:
    fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK
