"""Finds the secret that restricts a server's administrative interfaces, for tools of the server's user on its machine.

The server draws it and keeps it there (`covey.launcher.admin`).
"""

from __future__ import annotations

import os
from pathlib import Path

from covey_client.address import Address
from covey_client.errors import InvalidRequest
from covey_client.files import distrust

HEADER = "admin-key"
VARIABLE = "COVEY_ADMIN_SECRET"
FILE_VARIABLE = "COVEY_ADMIN_SECRET_FILE"
SHARED_MEMORY = Path("/dev/shm")  # tritonserver needs it too; emptied when the machine starts


def folder() -> Path:
    """Return the folder in which this user's servers keep their secrets. Does not create it."""
    return SHARED_MEMORY / f"covey-{os.getuid()}"


def given() -> str:
    """Return the secret in the environment, or in the file that it names; "" if there is none. It is never an argument
    of a command, because every user of a machine can read those. Raises InvalidRequest."""
    path = os.environ.get(FILE_VARIABLE, "")
    if VARIABLE in os.environ or not path:
        return os.environ.get(VARIABLE, "")
    try:
        read = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{FILE_VARIABLE}: {error}") from None
    if not read:
        raise InvalidRequest(f"{FILE_VARIABLE}: {path} is empty")
    return read


def found(address: Address) -> str:
    """Return the secret of the server there, as far as this user can know it; "" if they cannot."""
    return given() or (kept(address.port, address.host) if address.loopback else "")


def name_of(host: str, port: int) -> str:
    """Return the name of a server's files: another address of this machine may be another user's."""
    return f"{'127.0.0.1' if host in ('localhost', '', '0.0.0.0') else host}_{port}"


def kept(port: int, host: str = "127.0.0.1") -> str:
    """Return the secret that this user's server on `host` and `port` drew; "" if none is kept. Raises InvalidRequest if
    others could have written it."""
    try:
        reason = distrust(folder())
        if reason:
            raise InvalidRequest(reason)
        return (folder() / name_of(host, port)).read_text()
    except FileNotFoundError:
        return ""
