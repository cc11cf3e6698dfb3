"""Cleans up after a launcher that was killed outright: `python -m covey.launcher.guardian SECONDS HOST HTTP_PORT
OTHER_PORT ...`. It waits until its standard input closes, which happens when the launcher ends. Over that input the
launcher tells it, line by line, what to remove.

At that moment the kernel also tells tritonserver to end (`covey.launcher.process`). It takes seconds, or for ever in a
busy loop, and models' processes in such a loop would outlive it. Until all have ended, their ports stay taken.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence

from covey.launcher import admin, port_claim, shared_memory
from covey.supervision import processes
from covey.tritonio import link
from covey_client import running

PATIENCE_SECONDS = 5.0  # for tritonserver to end in order, while the policy saves its learnt state


class Guardian:
    """The process that cleans up after one tritonserver whose launcher was killed."""

    def __init__(self, host: str, ports: Sequence[int], patience: float = PATIENCE_SECONDS) -> None:
        """The server listens at `host` and `ports`. The first port, for HTTP, names the file of its secret."""
        self._words = [sys.executable, "-m", "covey.launcher.guardian", str(patience), host, *map(str, ports)]
        self._told: list[str] = []
        self._process = self._begun()

    def _begun(self) -> subprocess.Popen[bytes]:
        nowhere = subprocess.DEVNULL
        return subprocess.Popen(
            self._words, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere, start_new_session=True
        )

    def check(self) -> bool:
        """Start the process again if it has ended or is paused. Return whether it had."""
        if self._process.poll() is None:
            if processes.state(self._process.pid) != "T":
                return False
            self._process.kill()
        self._process.communicate()
        told, self._told, self._process = self._told, [], self._begun()
        for line in told:
            self.tell(line)
        return True

    def tell(self, line: str) -> None:
        """Send the guardian its next line: the prefix of the server's shared memory, then its secret, then its process
        id. All the server's processes have the prefix on their command lines."""
        assert self._process.stdin is not None
        self._told.append(line)
        with contextlib.suppress(OSError):  # the guardian was killed
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()

    def dismiss(self) -> None:
        """End the guardian: nothing is left to clean up."""
        self._process.kill()
        self._process.communicate()


def main(arguments: Sequence[str]) -> None:
    patience, host, ports = float(arguments[0]), arguments[1], [int(port) for port in arguments[2:]]
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # a service manager signals all processes: this one must be the last
    lines: list[str] = sys.stdin.read().splitlines()
    prefix, kept, server, *_ = [*lines, "", "", ""]
    if not prefix:  # nothing to remove yet, and every command line contains the empty text
        return
    if server:
        with contextlib.suppress(ProcessLookupError):
            select.select([os.pidfd_open(int(server))], [], [], patience)
    processes.kill(prefix)
    shared_memory.remove(prefix)
    if server:
        link.forget(int(server))
    admin.forget(ports[0], kept, host)
    running.sweep()
    port_claim.forget(host, ports)


if __name__ == "__main__":
    main(sys.argv[1:])
