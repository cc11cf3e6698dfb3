"""Measures memory: what only this process holds, and what the machine has available."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

ROLLUP = Path("/proc/self/smaps_rollup")


def private_bytes() -> int:
    """Return the bytes of memory that only this process holds. Shared pages, mostly of libraries, do not count."""
    lines = (line.split() for line in ROLLUP.read_text().splitlines()[1:])
    return sum(int(line[1]) << 10 for line in lines if line[0].startswith("Private_"))


def available(root: Path = Path("/")) -> int:
    """Return the bytes of memory that this machine, or its container, still has. Files that are only cached do not
    count as used."""
    match = re.search(r"MemAvailable:\s+(\d+) kB", (root / "proc/meminfo").read_text())
    found = int(match[1]) * 1024 if match else 1 << 62
    group = root / "sys/fs/cgroup"
    with suppress(OSError, ValueError):  # "max", or no such group
        limit, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
        cached = re.search(r"^inactive_file (\d+)", (group / "memory.stat").read_text(), re.MULTILINE)
        found = min(found, limit - used + int(cached[1] if cached else 0))
    return found
