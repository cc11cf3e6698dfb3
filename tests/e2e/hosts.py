"""Makes hosts that are network namespaces of this machine, each on a cable of its own; loopback where they cannot be
made."""

from __future__ import annotations

import ctypes
import os
import secrets
import socket
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from covey.launcher import Options, Server
from covey.process.worker import Thread

T = TypeVar("T")

NEW_NET = 0x40000000
LOOPBACK = "127.0.0.1"


def _ip(*words: str) -> bool:
    try:
        return subprocess.run(["ip", *words], capture_output=True, check=False, timeout=20).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


class Host:
    """Runs calls and servers on a host; `near` is this process's end of the cable, `address` the host's own."""

    def __init__(self, near: str = LOOPBACK, address: str = LOOPBACK, namespace: str = "") -> None:
        self.near, self.address, self._namespace = near, address, namespace
        self._thread = Thread(f"host {address}")
        if namespace:
            self.run(self._enter)

    @property
    def apart(self) -> bool:
        return bool(self._namespace)

    def free_port(self) -> int:
        """Return a port that is free at this end."""
        with socket.socket() as listener:
            listener.bind((self.near, 0))
            return int(listener.getsockname()[1])

    def server(self, options: Options, log_file: Path | None = None) -> Server:
        """Return a server that has started there."""
        secret = secrets.token_hex(16) if self._namespace else ""
        placed = replace(options, host=self.address, admin_secret=secret, log_file=log_file or options.log_file)

        def start() -> Server:
            server = Server(placed)
            server.start()
            return server

        return self.run(start)

    def run(self, call: Callable[[], T]) -> T:
        """Run the call in a thread that is there; so are the threads and processes that it starts. One thread runs all
        calls: a server ends with the thread that started it."""
        return self._thread.submit(lambda _: call(), None).result()

    def _enter(self) -> None:
        with Path(f"/run/netns/{self._namespace}").open() as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), NEW_NET):
                raise OSError(ctypes.get_errno(), "setns")


def hosts(count: int, stack: ExitStack) -> list[Host]:
    """Make so many hosts, gone with the stack. Another process of this machine may have made its own."""
    made, net = [], 64 + os.getpid() % 160
    for index in range(count):
        name = f"cv{os.getpid() % 100000}-{index}"
        near, far = f"10.{net}.{index}.1", f"10.{net}.{index}.2"
        inside = ("netns", "exec", name, "ip")
        whole = _ip("netns", "add", name)
        stack.callback(_ip, "netns", "del", name)
        for words in (
            ("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name),
            ("addr", "add", f"{near}/24", "dev", name),
            ("link", "set", name, "up"),
            (*inside, "addr", "add", f"{far}/24", "dev", "eth0"),
            (*inside, "link", "set", "eth0", "up"),
            (*inside, "link", "set", "lo", "up"),
        ):
            whole = whole and _ip(*words)
        if not whole:
            return [Host() for _ in range(count)]
        made.append(Host(near, far, name))
    return made
