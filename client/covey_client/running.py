"""The addresses on which this user's servers on this machine listen, so that tools need only one of a server's ports,
or none.

The launcher writes a file for each server that it runs, in the folder of the server's secret.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from covey_client.address import Address
from covey_client.errors import InvalidRequest
from covey_client.files import distrust, replace
from covey_client.secret import folder, name_of

SUFFIX = ".ports"
USUAL_PORT = 8001  # of gRPC


@dataclass(frozen=True)
class RunningServer:
    """The ports of one server. `pid` is its launcher's, and `started` when that was started, by which a later process
    of the same number is told from it."""

    host: str
    grpc: int
    http: int
    metrics: int
    pid: int
    front: int = 0  # the front's, of HTTP; 0: there is none
    front_grpc: int = 0
    started: int = field(default=0, compare=False)  # as the file says; 0 before there is one

    def at(self, port: int) -> str:
        return Address(self.host, port).target

    @property
    def fronts(self) -> tuple[int, ...]:
        """Return the front's ports."""
        return (self.front, self.front_grpc) if self.front else ()

    @property
    def path(self) -> Path:
        """Return the path of the server's file."""
        return folder() / (name_of(self.host, self.http) + SUFFIX)

    @property
    def alive(self) -> bool:
        """Return whether the server's launcher runs: a killed one leaves its file behind."""
        return 0 < self.started == started(self.pid)

    def write(self) -> None:
        """Write the server's file for the tools of this user; the folder is there."""
        replace(self.path, json.dumps(asdict(self) | {"started": started(self.pid)}))

    def forget(self) -> None:
        """Remove the file."""
        self.path.unlink(missing_ok=True)


def servers() -> list[RunningServer]:
    """Return the servers that run now. A folder that others can change is not trusted."""
    with suppress(FileNotFoundError):
        return [] if distrust(folder()) else [found for found in _read() if found.alive]
    return []


def sweep() -> None:
    """Remove the files of this user's servers that run no more."""
    with suppress(FileNotFoundError):
        for found in () if distrust(folder()) else _read():
            if not found.alive:
                found.forget()


def server_at(address: Address) -> RunningServer | None:
    """Return the server that has this port, if any."""
    having = (each for each in servers() if address.port in (each.grpc, each.http, each.metrics, *each.fronts))
    return next(
        (each for each in having if address.loopback and name_of(each.host, 0) == name_of(address.host, 0)), None
    )


def usual() -> str:
    """Return the gRPC port to use if none is named: the only server's, or of several the one on the usual port. Raises
    InvalidRequest if that does not decide."""
    there = servers()
    if len(there) > 1 and all(each.grpc != USUAL_PORT for each in there):
        listed = ", ".join(each.at(each.grpc) for each in there)
        raise InvalidRequest(f"{len(there)} servers run here: choose one by --url or COVEY_URL: {listed}")
    return there[0].at(there[0].grpc) if len(there) == 1 else f"127.0.0.1:{USUAL_PORT}"


def _read() -> Iterator[RunningServer]:
    for path in sorted(folder().glob("*" + SUFFIX)):
        with suppress(OSError, ValueError, TypeError):
            yield RunningServer(**json.loads(path.read_text()))


def started(pid: int) -> int:
    """Return when a process started, in ticks of the machine; 0 if there is none."""
    try:
        said = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(said.rpartition(")")[2].split()[19])  # after its name, which may have any characters
