"""Lists the processes of one server, tritonserver and its stubs, by their parent or by the shared memory prefix on
their command lines.

Process groups are unsafe: after tritonserver was waited for, another server may get its number.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Iterator

import psutil

from covey_client.running import started

INSTANCE = re.compile(r"\w+_\d+_\d+")  # a model's instance on its stub's command line; the first is 0_0
SERVER = "tritonserver"


def named(server: int) -> dict[str, int]:
    """Return a running server's processes by name: `tritonserver`, and its models' stubs by model."""
    return {SERVER: server} | {name.removesuffix("_0_0"): pid for name, pid in _instances(server)}


def by_model(server: int) -> dict[str, list[int]]:
    """Return the living processes of each model of a running server; Triton's zombies are left out."""
    pids: dict[str, list[int]] = {}
    for name, pid in _instances(server):
        pids.setdefault(name.rsplit("_", 2)[0], []).append(pid)
    return pids


def state(pid: int) -> str:
    """Return the kernel's letter for the process's state: T if it is paused, Z if it has ended but its parent has not
    waited for it; "" if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def lives(pid: int) -> bool:
    """Return whether the process has not ended."""
    return state(pid) not in ("", "Z")


def age(pid: int) -> float:
    """Return the process's age in seconds, to a hundredth; 0 if there is none. psutil would use the wall clock, which
    may be set."""
    ticks = started(pid)
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK") if ticks else 0.0


def spent(pid: int) -> float:
    """Return the processor seconds that the process and its descendants have used."""
    total = 0.0
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for member in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):  # it has ended meanwhile
                times = member.cpu_times()
                total += times.user + times.system
    return total


def moves(pid: int) -> int:
    """Return a counter of progress: page faults plus voluntary sleeps. A process that spins has neither."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return int(fields[7]) + int(fields[9]) + int(psutil.Process(pid).num_ctx_switches().voluntary)
    except (OSError, psutil.Error):
        return 0


def serves_somebody(pid: int, port: int) -> bool:
    """Return whether a client is connected to this TCP port of a process."""
    try:
        ends = psutil.Process(pid).net_connections("tcp")
    except psutil.Error:
        return False
    return any(end.status == psutil.CONN_ESTABLISHED and end.laddr.port == port for end in ends)


def end(pids: Iterable[int]) -> None:
    """Send SIGKILL to those processes that still exist."""
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pid).kill()


def kill(marker: str) -> int:
    """Send SIGKILL to every other process with `marker` on its command line; return how many were killed."""
    killed = 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile, or is not ours
            if process.pid != os.getpid() and any(marker in word for word in process.cmdline()):
                process.kill()
                killed += 1
    return killed


def _instances(server: int) -> Iterator[tuple[str, int]]:
    """Yield the instance name and pid of each stub of a running server."""
    try:
        children = psutil.Process(server).children()
    except psutil.Error:
        return
    for child in children:
        found: list[str] = []
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            found = [word for word in child.cmdline() if INSTANCE.fullmatch(word)]
        if found:
            yield found[-1], child.pid
