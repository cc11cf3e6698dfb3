"""Makes one plain exchange with a server's HTTP port, for questions about the server itself."""

from __future__ import annotations

import http.client
import io
import socket
import time
from collections.abc import Mapping
from typing import Any

from covey_client.address import NOT_HTTP, Address
from covey_client.errors import ConnectionLost, ServerError

MOST_BYTES = 1 << 26  # of an answer


class _Timely(io.RawIOBase):
    """Reads from a socket until its timeout, counted from now, has passed."""

    def __init__(self, sock: socket.socket, file: io.BufferedReader) -> None:
        self._socket, self._file = sock, file
        self._until = time.monotonic() + (sock.gettimeout() or 0.0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._socket.settimeout(left)
        return self._file.readinto1(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()


class _Answer(http.client.HTTPResponse):
    """An answer that must arrive as a whole within the socket's timeout, which else holds for each read."""

    def __init__(self, sock: socket.socket, *arguments: Any, **named: Any) -> None:
        super().__init__(sock, *arguments, **named)
        self.fp = io.BufferedReader(_Timely(sock, self.fp))


def ask(
    address: Address, method: str, path: str, *, headers: Mapping[str, str], seconds: float, body: bytes | None = None
) -> tuple[int, bytes]:
    """Return status and body of the answer. Raises ConnectionLost if there is no whole answer within `seconds`."""
    context = address.ssl_context()
    asked = (
        http.client.HTTPConnection(address.host, address.port, timeout=seconds)
        if context is None
        else http.client.HTTPSConnection(address.host, address.port, timeout=seconds, context=context)
    )
    asked.response_class = _Answer
    try:
        asked.request(method, path, body=body, headers={**headers, **address.headers})
        answer = asked.getresponse()
        said = answer.read(MOST_BYTES)
        if answer.read(1):
            raise ServerError(f"{address.target} answers with more than {MOST_BYTES} bytes")
        if answer.length:
            raise http.client.IncompleteRead(said, answer.length)
        return answer.status, said
    except OSError as error:
        raise ConnectionLost(f"{address.target}: {error}") from None
    except http.client.HTTPException as error:
        raise ServerError(f"{address.target} {NOT_HTTP} [{type(error).__name__}]") from None
    finally:
        asked.close()
