"""Counts a server's deaths in a few bytes of memory that the launcher writes and its front reads.

Even the shortest outage is counted. The front also learns when the port is no longer the launcher's server's, so it
never mistakes another process there for the server.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from dataclasses import dataclass, replace

_FORMAT = struct.Struct("<Qd?")


@dataclass(frozen=True)
class DeathCount:
    """Counts deaths of the public model or the whole server. `last` is the time of the last one by `time.monotonic`,
    which all processes share. `serving` tells whether the launcher's living server has the port."""

    deaths: int = 0
    last: float = 0.0
    serving: bool = False


class Deaths:
    """The launcher's side of the shared memory, which lives as long as the launcher."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("covey-deaths")
        self._lock = threading.Lock()
        self._write(DeathCount())

    def note(self, server: bool) -> None:
        """Count a death of the whole server or of the public model alone. Any thread."""
        with self._lock:
            seen = read(self.fd)
            self._write(DeathCount(seen.deaths + 1, time.monotonic(), seen.serving and not server))

    def serving(self, value: bool) -> None:
        """Note whether the server serves: True after its start, False after an orderly end. Any thread."""
        with self._lock:
            self._write(replace(read(self.fd), serving=value))

    def __del__(self) -> None:
        os.close(self.fd)

    def _write(self, seen: DeathCount) -> None:
        os.pwrite(self.fd, _FORMAT.pack(seen.deaths, seen.last, seen.serving), 0)


def read(fd: int) -> DeathCount:
    return DeathCount(*_FORMAT.unpack(os.pread(fd, _FORMAT.size, 0)))
