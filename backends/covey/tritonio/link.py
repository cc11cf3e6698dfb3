"""A private line between two models of one server, where BLS will not do.

`covey` is decoupled, and BLS calls to decoupled models are not to be trusted on 24.10. `covey_unary` therefore reaches
the orchestrator over a Unix socket in a folder that only this user can enter; its name is the server's process id,
which both models' processes have as their parent. Values are pickled, which is safe between processes of one user.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from covey.errors import PortError

Message = tuple[int, str, Any]  # the caller's id of the exchange, what it is, and its value


def address(model: str) -> str:
    """Where `model` of this server listens. Makes the folder, private to this user."""
    folder = Path(tempfile.gettempdir()) / f"covey-{os.getuid()}-{os.getppid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PortError(f"{folder} belongs to another user")
    return str(folder / model)


class Peer:
    """One end of a line: sends from any thread, receives in its own."""

    def __init__(
        self, connection: Connection, receive: Callable[[Peer, Message], None], lost: Callable[[Peer], None]
    ) -> None:
        self._connection = connection
        self._receive = receive
        self._lost = lost
        self._sending = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="link", daemon=True)
        self._thread.start()

    def send(self, message: Message) -> None:
        try:
            with self._sending:
                self._connection.send(message)
        except (OSError, ValueError) as error:
            raise PortError(f"the other model is gone: {error}") from None

    def close(self) -> None:
        with suppress(OSError):
            self._connection.close()

    def _run(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                self._receive(self, self._connection.recv())
        self._lost(self)


class Exchange:
    """The listening end: every caller becomes a `Peer`."""

    def __init__(self, model: str, receive: Callable[[Peer, Message], None], lost: Callable[[Peer], None]) -> None:
        self._path = address(model)
        with suppress(FileNotFoundError):
            os.unlink(self._path)  # of an earlier process of this model: its stub was killed
        self._listener = Listener(self._path, "AF_UNIX", backlog=16)
        self._receive = receive
        self._lost = lost
        self._closed = threading.Event()
        threading.Thread(target=self._accept, name="link-accept", daemon=True).start()

    def close(self) -> None:
        self._closed.set()
        with suppress(OSError):
            self._listener.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                Peer(self._listener.accept(), self._receive, self._lost)
            except OSError:
                continue  # a caller that left at once, or close()


def connect(model: str, receive: Callable[[Peer, Message], None], lost: Callable[[Peer], None]) -> Peer:
    """Call `model`; raises PortError when it does not listen."""
    try:
        return Peer(Client(address(model), "AF_UNIX"), receive, lost)
    except OSError as error:
        raise PortError(f"model {model} is not up: {error}") from None
