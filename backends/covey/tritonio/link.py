"""A private link between two models of one server, where BLS does not work.

`covey` is decoupled, and BLS calls to decoupled models are unreliable on 24.10. So `covey_unary` reaches the
orchestrator over a Unix socket, in a folder that only this user can enter. The folder is named after the server's
process id, which is the parent of both models' processes. Over the same link the launcher asks the orchestrator whether
it serves yet, and tells it to take no more requests. Decoding a message runs no code of the sender
(`covey.wire.frames`).
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

from covey.contracts.errors import PortError, SettingError
from covey.process.private import checked, private_folder
from covey.wire.frames import MOST_BYTES, Message, decode, encode

log = logging.getLogger("covey.link")

__all__ = ["ANSWER_SECONDS", "Exchange", "Message", "Peer", "address", "connect", "refuse_requests", "serves"]

ANSWER_SECONDS = 2.0  # so that a process that is starting or stuck does not delay the end of its server


def address(model: str, server: int) -> Path:
    """Return the socket on which `model` of the server with process id `server` listens."""
    return _folder(server) / model


def _folder(server: int) -> Path:
    return Path(tempfile.gettempdir()) / f"covey-{os.getuid()}-{server}"


def forget(server: int) -> None:
    """Remove the folder of a server that has ended; no process listens there any more."""
    shutil.rmtree(_folder(server), ignore_errors=True)


class Peer:
    """One end of a link: sends from any thread, receives in its own."""

    def __init__(self, connection: Connection, receive: Receive, lost: Lost) -> None:
        self._connection = connection
        self._receive = receive
        self._lost = lost
        self._sending = threading.Lock()
        self._closing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="link", daemon=True)
        self._thread.start()

    def send(self, message: Message) -> None:
        """Send a message. Raises PortError if the other end is gone, or an error of `encode`."""
        frame = encode(message)
        try:
            with self._sending:
                self._connection.send_bytes(frame)
        except (OSError, ValueError) as error:
            raise PortError(f"the other model is gone: {error}") from None

    def close(self) -> None:
        """Close the link, which both ends notice even while this one receives or sends. Only the receiving thread
        closes the descriptor: a second close could hit another file that has the number by then."""
        with self._closing:
            if self._connection.closed:
                return
            with suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as line:
                line.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        try:
            while True:
                self._receive(self, decode(self._connection.recv_bytes(MOST_BYTES)))
        except (EOFError, OSError):
            pass  # the other end closed the link
        except Exception:
            log.exception("closing a link between two models after an error")
        finally:
            self.close()
            with self._sending, self._closing:
                self._connection.close()
            self._lost(self)


Receive = Callable[[Peer, Message], None]
Lost = Callable[[Peer], None]  # called when either end has closed the link, after the last message


class Exchange:
    """The listening end: every caller gets a `Peer`."""

    def __init__(self, model: str, receive: Receive, lost: Lost) -> None:
        self._path = address(model, os.getppid())
        private_folder(self._path.parent)
        with suppress(FileNotFoundError):
            os.unlink(self._path)  # left by an earlier process of this model, which was killed
        self._listener = Listener(str(self._path), "AF_UNIX", backlog=16)
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
                continue  # a caller left at once, or close() was called


def connect(model: str, receive: Receive, lost: Lost, server: int | None = None) -> Peer:
    """Connect to `model` of a server, by default the one that runs this process. Raises PortError if it does not
    listen."""
    path = address(model, server or os.getppid())
    try:
        checked(path.parent)
        return Peer(_dialled(path), receive, lost)
    except (OSError, SettingError) as error:
        raise PortError(f"model {model} is not up: {error}") from None


def _dialled(path: Path) -> Connection:
    """Connect to a model's socket. Fails at once if its backlog is full, as it is with too many callers: a caller that
    blocked here could not be ended."""
    with socket.socket(socket.AF_UNIX) as line:
        line.setblocking(False)
        line.connect(str(path))
        line.setblocking(True)
        return Connection(line.detach())


def refuse_requests(model: str, server: int) -> int | None:
    """Have `model` take no more requests and finish those that it has. Return how many these are, or None without an
    answer. Raises PortError if it does not listen."""
    count: int | None = _ask(model, server, "drain")
    return count


def serves(model: str, server: int) -> bool:
    """Return whether `model` has finished its preparations and serves. Raises PortError if it does not listen, and
    SettingError if it never will serve."""
    answer = _ask(model, server, "serves")
    if isinstance(answer, str):
        raise SettingError(answer)
    return bool(answer)


def _ask(model: str, server: int, what: str) -> Any:
    """Return the answer's value, or None if none comes in time."""
    ended, values = threading.Event(), []

    def receive(_peer: Peer, message: Message) -> None:
        values.append(message.value)
        ended.set()

    peer = connect(model, receive, lambda _peer: ended.set(), server)
    try:
        peer.send(Message(0, what))
        ended.wait(ANSWER_SECONDS)
    finally:
        peer.close()
    return values[0] if values else None
