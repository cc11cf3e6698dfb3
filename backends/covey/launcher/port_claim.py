"""Claims ports for a starting server, so that of two starts at once the second is refused before it can disturb the
first. A port without a listener may belong to a server that still loads its models."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from covey.launcher import preflight
from covey.launcher.errors import StartError
from covey.launcher.options import FREE, Options
from covey.process.lock import lock
from covey.process.private import private_folder
from covey_client import secret

ATTEMPTS = 20  # to find free ports that no other start has chosen


@dataclass(frozen=True)
class PortClaim:
    """One locked file per port. The locks of a killed launcher are free."""

    locks: dict[Path, int]

    def release(self) -> None:
        for path, fd in self.locks.items():
            path.unlink(missing_ok=True)
            os.close(fd)


def settle(options: Options) -> tuple[Options, PortClaim]:
    """Return the options with a port for every FREE one, and the claim of all ports. Raises StartError if a port is
    taken."""
    for attempt in range(ATTEMPTS):
        chosen = preflight.with_ports(options)
        try:
            return chosen, _claim(chosen)
        except StartError:
            if attempt == ATTEMPTS - 1 or FREE not in (getattr(options, name) for name in preflight.PORTS):
                raise
    raise AssertionError("unreachable")


def forget(host: str, ports: Iterable[int]) -> None:
    """Remove a killed launcher's claim, unless another server has taken these ports since."""
    for port in ports:
        path = secret.folder() / _name(host, port)
        fd = lock(path)
        if fd is not None:
            PortClaim({path: fd}).release()


def _name(host: str, port: int) -> str:
    return f"{secret.name_of(host, port)}.lock"


def _claim(options: Options) -> PortClaim:
    folder = private_folder(secret.folder())
    held = PortClaim({})
    for name, variable in preflight.PORTS.items():
        port = getattr(options, name)
        path = folder / _name(options.host, port)
        fd = lock(path)
        if fd is None:
            held.release()
            raise StartError(
                f"another server that is starting or stopping holds port {port} on {options.host}: "
                f"choose another by {variable}="
            )
        held.locks[path] = fd
    return held
