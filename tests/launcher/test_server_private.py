"""What a server keeps from other users, and what two starts at once keep from each other."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from covey.launcher import (
    FREE,
    FREE_PORTS,
    Options,
    StartError,
    port_claim,
    preflight,
    private_memory,
)
from covey_client import Client
from covey_client import secret as tools

Make = Callable[[], Any]

OPENS = """
import os, sys
fd = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR, 0o600)
for mode in (0o644, 0o640):
    os.fchmod(fd, mode)
    print(oct(os.fstat(fd).st_mode & 0o777))
"""


@pytest.fixture
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tools, "SHARED_MEMORY", tmp_path)
    return tools.folder()


def test_what_a_library_opens_to_everybody_stays_closed(tmp_path: Path) -> None:
    keeper = private_memory.keeper()
    if keeper is None:
        pytest.skip("a machine whose calls have other numbers")
    words = [sys.executable, "-c", OPENS, str(tmp_path / "region")]
    said = subprocess.run(words, preexec_fn=keeper, stdout=subprocess.PIPE, check=True).stdout.split()
    assert said == [b"0o600", b"0o640"], "only that one call is left out"


def test_a_port_is_one_start_s_alone(private: Path) -> None:
    first, claim = port_claim.settle(Options(**FREE_PORTS))
    for name, variable in preflight.PORTS.items():
        ports = dict.fromkeys(preflight.PORTS, FREE) | {name: getattr(first, name)}
        with pytest.raises(StartError, match=rf"another .* holds port {ports[name]} on 127.0.0.1: .* by {variable}="):
            port_claim.settle(Options(**ports))
    assert len(list(private.iterdir())) == 3, "what a refused start had locked is free again"
    other, others = port_claim.settle(Options(host="127.0.0.2", http_port=first.http_port, grpc_port=0, metrics_port=0))
    assert other.http_port == first.http_port
    others.release()
    claim.release()
    assert list(private.iterdir()) == []
    _, again = port_claim.settle(first)
    again.release()


def test_a_free_port_is_none_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    named = preflight.with_ports(Options(**FREE_PORTS)).metrics_port
    listen = preflight.listen

    def unlucky(host: str, port: int, variable: str) -> socket.socket:
        try:
            return listen(host, port or named, variable)
        except StartError:
            return listen(host, port, variable)

    monkeypatch.setattr(preflight, "listen", unlucky)
    chosen = preflight.with_ports(Options(http_port=FREE, grpc_port=FREE, metrics_port=named))
    assert chosen.metrics_port == named
    assert len({getattr(chosen, name) for name in preflight.PORTS}) == 3


@pytest.mark.e2e
def test_a_second_start_on_the_port_leaves_the_first_alone(canned_folder: Make) -> None:
    canned = canned_folder()
    first = canned.server("covey")
    begun, failed = threading.Event(), []
    first._watcher = lambda *_: begun.set()
    thread = threading.Thread(target=first.start)
    thread.start()
    try:
        assert begun.wait(60)
        log_file, words = first.log_file, first.log_text()
        second = canned.server("covey", **{name: getattr(first.options, name) for name in preflight.PORTS})
        with pytest.raises(StartError, match=r"another server .* holds port|is not free") as caught:
            second.start()
        failed.append(caught)
        thread.join()
        assert first.log_file == log_file
        assert first.log_text().startswith(words[:200])
        assert tools.kept(first.options.http_port)
        with Client(first.grpc_url) as client:
            assert client.generate("count 2").tokens == (0, 1)
    finally:
        thread.join()
        first.stop(drain_seconds=0)
    assert failed
