"""How often what the front asks has died, and when last: a few bytes in memory that the launcher writes, who is told by
the kernel, and that the front reads. However short an outage was, it has been counted."""

from __future__ import annotations

import os
import struct
import threading
import time

_FORMAT = struct.Struct("<Qd")


class Deaths:
    """The launcher's end, which lives as long as the launcher."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("covey-deaths")
        self._count, self._lock = 0, threading.Lock()
        os.pwrite(self.fd, _FORMAT.pack(0, 0.0), 0)

    def note(self) -> None:
        """Any thread."""
        with self._lock:
            self._count += 1
            os.pwrite(self.fd, _FORMAT.pack(self._count, time.monotonic()), 0)

    def __del__(self) -> None:
        os.close(self.fd)


def read(fd: int) -> tuple[int, float]:
    """How many there were, and the time of the last one by the clock that all processes share (`time.monotonic`)."""
    count, at = _FORMAT.unpack(os.pread(fd, _FORMAT.size, 0))
    return int(count), float(at)
