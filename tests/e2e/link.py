"""A way between two machines that can be slowed, cut and healed: a proxy of TCP connections."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Sequence


class Link:
    """Listens on a free port of `host`. `delay` is each way's, in seconds; `cut` keeps what is sent and lets
    nobody know; with `refuse` there is no way at all. With `others` connections go there in turns, past those that do
    not listen; `taken` counts them by where they went."""

    def __init__(self, to: tuple[str, int], host: str = "127.0.0.1", *, others: Sequence[tuple[str, int]] = ()) -> None:
        self.taken = dict.fromkeys((to, *others), 0)
        self.delay = 0.0
        self.cut = self.refuse = False
        self._turns = itertools.cycle(self.taken)
        self._listener = socket.create_server((host, 0))
        self._open: set[socket.socket] = set()
        self._closed = False

    @property
    def address(self) -> str:
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    def __enter__(self) -> Link:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        self._listener.close()
        self.break_all()

    def heal(self) -> None:
        """What was kept is lost with its connection."""
        if self.cut:
            self.break_all()
        self.delay, self.cut, self.refuse = 0.0, False, False

    def break_all(self) -> None:
        for end in list(self._open):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._open.clear()

    def _accept(self) -> None:
        while not self._closed:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                if self.refuse:
                    raise OSError("refused")
                far = self._connection()
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._open.add(end)
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    def _connection(self) -> socket.socket:
        for left in reversed(range(len(self.taken))):
            place = next(self._turns)
            try:
                far = socket.create_connection(place, timeout=2.0)
            except OSError:
                if not left:
                    raise
            else:
                self.taken[place] += 1
                return far
        raise AssertionError

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                time.sleep(self.delay)
                while self.cut and not self._closed:
                    time.sleep(0.02)
                if self.refuse:
                    break
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            self._open.discard(end)
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # whoever reads of it in another thread would keep it open
            end.close()
