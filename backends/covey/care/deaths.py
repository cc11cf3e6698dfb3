"""Deaths of the server behind a front: a few bytes in memory, written by the launcher, whom the kernel tells of them.
However short an outage was, it has been counted; and whoever takes the port of a server that has died is not taken for
it."""

from __future__ import annotations

import os
import struct
import threading
import time
from dataclasses import dataclass, replace

_FORMAT = struct.Struct("<Qd?")


@dataclass(frozen=True)
class Seen:
    """How often the public model or all of the server has died, when last by the clock that all processes share
    (`time.monotonic`), and whether the port is that of a server which the launcher has started and which lives."""

    deaths: int = 0
    last: float = 0.0
    serving: bool = False


class Deaths:
    """The launcher's end, which lives as long as the launcher."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("covey-deaths")
        self._lock = threading.Lock()
        self._write(Seen())

    def note(self, server: bool) -> None:
        """A death, of the server or of the public model alone. Any thread."""
        with self._lock:
            seen = read(self.fd)
            self._write(Seen(seen.deaths + 1, time.monotonic(), seen.serving and not server))

    def serving(self, value: bool) -> None:
        """The server has started, or ended in order. Any thread."""
        with self._lock:
            self._write(replace(read(self.fd), serving=value))

    def __del__(self) -> None:
        os.close(self.fd)

    def _write(self, seen: Seen) -> None:
        os.pwrite(self.fd, _FORMAT.pack(seen.deaths, seen.last, seen.serving), 0)


def read(fd: int) -> Seen:
    return Seen(*_FORMAT.unpack(os.pread(fd, _FORMAT.size, 0)))
