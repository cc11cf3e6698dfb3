"""What an HTTP port answers is bounded in length and in time, whoever listens there."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from covey_client import asking
from covey_client.address import Address
from covey_client.errors import ConnectionLost, ServerError

HEAD = b"HTTP/1.1 200 OK\r\n"


@contextmanager
def listening(answer: bytes, drops: bytes = b"") -> Iterator[Address]:
    """An HTTP port that answers this, and then these bytes again and again until its caller leaves."""

    def serve() -> None:
        connection, _ = server.accept()
        with connection, suppress(OSError):
            connection.recv(1000)
            connection.sendall(answer)
            while drops:
                connection.sendall(drops)
                time.sleep(0.05)

    with socket.create_server(("127.0.0.1", 0)) as server:
        serving = threading.Thread(target=serve)
        serving.start()
        yield Address("127.0.0.1", server.getsockname()[1])
        serving.join()


def ask(address: Address, seconds: float = 5.0) -> tuple[int, bytes]:
    return asking.ask(address, "GET", "/", headers={}, seconds=seconds)


@pytest.mark.parametrize("length", [b"content-length: %d\r\n", b""], ids=["said", "not-said"])
def test_an_answer_has_a_bounded_length(length: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "MOST_BYTES", 1000)

    def answer(size: int) -> bytes:
        return HEAD + (length % size if length else b"") + b"\r\n" + b"x" * size

    with listening(answer(1000)) as address:
        assert ask(address) == (200, b"x" * 1000)
    with listening(answer(1001)) as address, pytest.raises(ServerError, match="answers with more than 1000 bytes"):
        ask(address)


def test_a_length_that_is_only_said_takes_no_memory() -> None:
    answer = HEAD + b"content-length: 99999999999999\r\n\r\nx"
    with listening(answer) as address, pytest.raises(ServerError, match="IncompleteRead"):
        ask(address)


@pytest.mark.parametrize(
    "begin", [b"x: ", b"\r\n", b"transfer-encoding: chunked\r\n\r\n"], ids=["head", "body", "chunk"]
)
def test_an_answer_in_drops_is_too_late(begin: bytes) -> None:
    began = time.monotonic()
    with listening(HEAD + begin, b"0") as address, pytest.raises(ConnectionLost, match="timed out"):
        ask(address, 0.3)
    assert time.monotonic() - began < 4.0
