"""Measures memory: what only this process holds, and what the machine has available."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from pathlib import Path

from covey.process.cpu import around

ROLLUP = Path("/proc/self/smaps_rollup")
UNLIMITED = 1 << 62
LOOK_SECONDS = 0.1


def private_bytes() -> int:
    """Return the bytes of memory that only this process holds. Shared pages, mostly of libraries, do not count."""
    lines = (line.split() for line in ROLLUP.read_text().splitlines()[1:])
    return sum(int(line[1]) << 10 for line in lines if line[0].startswith("Private_"))


def available(root: Path = Path("/")) -> int:
    """Return the bytes of memory that this machine, or a control group of this process, still has. Files that are only
    cached do not count as used."""
    match = re.search(r"MemAvailable:\s+(\d+) kB", (root / "proc/meminfo").read_text())
    found = int(match[1]) * 1024 if match else UNLIMITED
    groups = around("memory", root / "sys/fs/cgroup", root / "proc/self/cgroup")
    return max(0, min(found, *map(_left, groups), UNLIMITED))


def _left(group: Path) -> int:
    """Return the bytes that a control group may still take."""
    names = "max", "current", "inactive_file"
    if not (group / "memory.max").exists():  # version 1
        names = "limit_in_bytes", "usage_in_bytes", "total_inactive_file"
    try:
        limit, used = (int((group / f"memory.{name}").read_text()) for name in names[:2])
        cached = re.search(rf"^{names[2]} (\d+)", (group / "memory.stat").read_text(), re.MULTILINE)
    except (OSError, ValueError):  # "max", or no such group
        return UNLIMITED
    return limit - used + int(cached[1] if cached else 0)


class Spare:
    """Tells whether more than `floor` bytes are available. Looks at most every `LOOK_SECONDS`, because a look takes up
    to a millisecond."""

    def __init__(self, floor: int, now: Callable[[], float] = time.monotonic) -> None:
        self._floor, self._now = floor, now
        self._due, self._found = -math.inf, True

    def __call__(self) -> bool:
        now = self._now()
        if now >= self._due:
            self._due, self._found = now + LOOK_SECONDS, available() > self._floor
        return self._found
