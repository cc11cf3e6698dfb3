"""Ends what a launcher leaves behind that was killed outright:
`python -m covey.server.guardian SECONDS HOST HTTP_PORT OTHER_PORT ...`. It waits for the end of its standard input,
which the launcher's end is. What there is to remove comes over it, a line each, as soon as it is there.

The kernel then asks tritonserver to end, too (`covey.server.process`). It does so in seconds, or never where it runs in
circles, and models' processes that do would outlive it. Until all have ended their ports are nobody else's.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence

from covey.care import processes
from covey.server import admin, port_claim, shared_memory
from covey.tritonio import link
from covey_client import running

PATIENCE_SECONDS = 5.0  # for tritonserver to end in order, in which the policy keeps what it has learnt


class Guardian:
    """The process that cleans up after one tritonserver whose launcher was killed."""

    def __init__(self, host: str, ports: Sequence[int], patience: float = PATIENCE_SECONDS) -> None:
        """`host` and `ports` say where the server listens, first for HTTP, by which its secret is stored."""
        words = [sys.executable, "-m", "covey.server.guardian", str(patience), host, *map(str, ports)]
        nowhere = subprocess.DEVNULL
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere, start_new_session=True
        )

    def tell(self, line: str) -> None:
        """Tell the guardian first the prefix of the server's shared memory, which is on the command lines of all of its
        processes, then its secret, then its process."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # somebody has killed it
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()

    def dismiss(self) -> None:
        """End the guardian: nothing is left to clean up."""
        self._process.kill()
        self._process.communicate()


def main(arguments: Sequence[str]) -> None:
    patience, host, ports = float(arguments[0]), arguments[1], [int(port) for port in arguments[2:]]
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # whoever ends a service ends all of its processes: this one is the last
    lines: list[str] = sys.stdin.read().splitlines()
    prefix, kept, server, *_ = [*lines, "", "", ""]
    if not prefix:  # there is nothing yet; every command line has the empty text
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
