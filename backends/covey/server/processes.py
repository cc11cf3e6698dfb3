"""The processes of one server: tritonserver and its stubs, known by the shared memory prefix on their command lines.

Not by process group: once tritonserver has been waited for, its number may be another server's.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

PROC = Path("/proc")


def kill(marker: str) -> int:
    """SIGKILL every process that has `marker` on its command line, but not this one; returns how many."""
    killed = 0
    for entry in PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):  # it has ended meanwhile, or is not ours
            fd = os.pidfd_open(int(entry.name))  # opened before the look, so that both are of the same process
            try:
                if marker.encode() in (entry / "cmdline").read_bytes():
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
                    killed += 1
            finally:
                os.close(fd)
    return killed
