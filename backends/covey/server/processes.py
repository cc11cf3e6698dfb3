"""The processes of one server: tritonserver and its stubs, known by the shared memory prefix on their command lines.

Not by process group: once tritonserver has been waited for, its number may be another server's.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

PROC = Path("/proc")
INSTANCE = re.compile(r"\w+_\d+_\d+")  # an instance of a model, as its stub's command line has it; the first is 0_0


def named(server: int) -> dict[str, int]:
    """A running server's processes: `tritonserver`, and by its name each model's whose parent it is."""
    return {"tritonserver": server} | {name.removesuffix("_0_0"): pid for name, pid in _instances(server)}


def names(server: int) -> dict[int, str]:
    """The same by process: a model's earlier one may live beside its successor."""
    return {server: "tritonserver"} | {pid: name.removesuffix("_0_0") for name, pid in _instances(server)}


def by_model(server: int) -> dict[str, list[int]]:
    """The living processes of a running server's models, each model's instances together. Of one that has ended Triton
    may keep a zombie for as long as it runs, whose command line is empty."""
    pids: dict[str, list[int]] = {}
    for name, pid in _instances(server):
        pids.setdefault(name.rsplit("_", 2)[0], []).append(pid)
    return pids


def state(pid: int) -> str:
    """The kernel's letter for what the process does: T where it is paused, Z where it has ended and its parent does
    not know it yet; "" where there is none."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def age(pid: int) -> float:
    """For how many seconds it has been there, to a hundredth; 0 where there is none."""
    try:
        began = int((PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began


def end(pids: Iterable[int]) -> None:
    """SIGKILL those that are still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def lives(pid: int) -> bool:
    """Whether this process has not ended, also where its parent does not know it yet."""
    return state(pid) not in ("", "Z")


def _instances(server: int) -> Iterator[tuple[str, int]]:
    for entry in PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):  # it has ended meanwhile
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == server:
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                instances = [word for word in words if INSTANCE.fullmatch(word)]
                if instances:
                    yield instances[-1], int(entry.name)


def named_by(marker: str) -> bool:
    """Whether a process has `marker` on its command line."""
    for path in PROC.glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if marker.encode() in path.read_bytes():
                return True
    return False


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
