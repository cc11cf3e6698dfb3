"""Keeps the secret that restricts a server's administrative interfaces. `covey_client.secret` says where tools find it.

Loading a model can run code, so every server of the launcher demands a secret for it: the given one, or one drawn at
each start. A drawn secret is kept in memory until the server ends, in a file that only this user can read. Its name has
the server's address and HTTP port. The file of a killed server is useless.
"""

from __future__ import annotations

import contextlib
import os
import secrets

from covey.process.private import private_folder
from covey_client.secret import folder, name_of


def settle(port: int, given: str, host: str = "127.0.0.1") -> str:
    """Return the secret for a server that will listen there: `given`, which is never stored, or a fresh one."""
    path = private_folder(folder()) / name_of(host, port)
    path.unlink(missing_ok=True)
    if given:
        return given
    drawn = secrets.token_hex(16)
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
        file.write(drawn)
    return drawn


def forget(port: int, secret: str, host: str = "127.0.0.1") -> None:
    """Remove the secret of an ended server, unless a new server on the same port has written its own."""
    with contextlib.suppress(FileNotFoundError):
        path = folder() / name_of(host, port)
        if path.read_text() == secret:
            path.unlink()
