"""Ends what a launcher leaves behind that was killed outright:
`python -m covey.server.guardian PREFIX SERVER HTTP_PORT HOST SECONDS`. It waits for the end of its standard input,
which the launcher's end is.

The kernel then asks tritonserver to end, too (`covey.server.process`). It does so in seconds, or never where it runs in
circles, and models' processes that do would outlive it. Until all have ended their ports are nobody else's.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence

from covey import admin
from covey.care import processes
from covey.server import shared_memory
from covey.tritonio import link
from covey_client import secret

PATIENCE_SECONDS = 5.0  # for tritonserver to end in order, in which the policy keeps what it has learnt


class Guardian:
    """One for each tritonserver, as long as that lives."""

    def __init__(self, prefix: str, server: int, port: int, host: str, patience: float = PATIENCE_SECONDS) -> None:
        """`prefix` is that of the server's shared memory, which is on the command lines of all of its processes. `port`
        and `host` say where it listens for HTTP, by which its secret is kept."""
        words = [sys.executable, "-m", "covey.server.guardian", prefix, str(server), str(port), host, str(patience)]
        nowhere = subprocess.DEVNULL
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere, start_new_session=True
        )

    def dismiss(self) -> None:
        """The server has ended, or its launcher sees to that."""
        self._process.kill()
        self._process.communicate()


def main(arguments: Sequence[str]) -> None:
    prefix, server, port, host, patience = arguments[0], int(arguments[1]), int(arguments[2]), *arguments[3:5]
    kept = secret.kept(port, host)  # a server that takes the port later has another
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # whoever ends a service ends all of its processes: this one is the last
    try:
        fd = os.pidfd_open(server)
    except ProcessLookupError:
        fd = -1
    sys.stdin.buffer.read()
    if fd >= 0:
        select.select([fd], [], [], float(patience))
    processes.kill(prefix)
    shared_memory.remove(prefix)
    link.forget(server)
    admin.forget(port, kept, host)


if __name__ == "__main__":
    main(sys.argv[1:])
