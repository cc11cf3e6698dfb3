"""The secret that restricts a server's administrative interfaces, as tools of the server's user on its machine find it.

The server draws it and keeps it there (`covey.admin`).
"""

from __future__ import annotations

import os
from pathlib import Path

from covey_client.address import Address
from covey_client.errors import InvalidRequest
from covey_client.files import distrust

HEADER = "admin-key"
VARIABLE = "COVEY_ADMIN_SECRET"
SHARED_MEMORY = Path("/dev/shm")  # tritonserver needs it too; emptied when the machine starts


def folder() -> Path:
    """Where this user's servers keep their secrets. Does not create it."""
    return SHARED_MEMORY / f"covey-{os.getuid()}"


def found(address: Address) -> str:
    """The secret of the server there, as far as this user can know it; "" where they cannot."""
    return os.environ.get(VARIABLE, "") or (kept(address.port) if address.loopback else "")


def kept(port: int) -> str:
    """The secret that this user's server on `port` drew; "" where none is kept. Raises InvalidRequest where others
    could have put it there."""
    try:
        reason = distrust(folder())
        if reason:
            raise InvalidRequest(reason)
        return (folder() / str(port)).read_text()
    except FileNotFoundError:
        return ""
