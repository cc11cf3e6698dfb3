"""Requests over HTTP for threads: one connection each, which is what tells the server that a client has gone."""

from __future__ import annotations

import contextlib
import http.client
import socket
from collections.abc import Iterator

from covey_client import errors, sse
from covey_client.address import Address
from covey_client.deadline import Deadline
from covey_client.request import Request
from covey_client.response import Chunk, from_json


class HttpTransport:
    """For threads. Keeps nothing between calls."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._context = address.ssl_context()

    def call(self, request: Request, deadline: Deadline) -> HttpCall:
        host, port, left = self._address.host, self._address.port, deadline.left()
        connection = (
            http.client.HTTPSConnection(host, port, timeout=left, context=self._context)
            if self._context is not None
            else http.client.HTTPConnection(host, port, timeout=left)
        )
        return HttpCall(connection, request, dict(self._address.headers), deadline)

    def close(self) -> None:
        """Nothing is held."""


class HttpCall:
    """One connection and the answer on it."""

    def __init__(
        self, connection: http.client.HTTPConnection, request: Request, headers: dict[str, str], deadline: Deadline
    ) -> None:
        self._connection = connection
        self._request = request
        self._headers = headers | {"Content-Type": "application/json"}
        self._deadline = deadline
        self._socket: socket.socket | None = None
        self._cancelled = False

    def chunks(self) -> Iterator[Chunk]:
        streams = bool(self._request.tensors["stream"][0])
        try:
            response = self._send(sse.path(self._request, streams))
            if response.status != 200:
                raise sse.refusal(response.status, response.read())
            if not streams:
                yield from_json(response.read())
                return
            while line := self._line(response):
                chunk = sse.event(line)
                if chunk is not None:
                    yield chunk
        except TimeoutError:
            raise self._deadline.error() from None
        except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: closed under the reader
            raise self._lost(error) from None
        finally:
            self._connection.close()
        if self._cancelled:
            raise errors.Cancelled("the request was cancelled")

    def cancel(self) -> None:
        self._cancelled = True
        if self._socket is not None:
            with contextlib.suppress(OSError):  # it has ended
                self._socket.shutdown(socket.SHUT_RDWR)

    def _send(self, path: str) -> http.client.HTTPResponse:
        self._connection.connect()
        self._socket = self._connection.sock
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection.request("POST", path, self._request.to_json(), self._headers)
        self._socket.settimeout(self._deadline.left())
        return self._connection.getresponse()

    def _line(self, response: http.client.HTTPResponse) -> bytes:
        assert self._socket is not None
        self._socket.settimeout(self._deadline.left())
        return response.readline()

    def _lost(self, error: Exception) -> errors.CoveyClientError:
        if self._cancelled:
            return errors.Cancelled("the request was cancelled")
        said = str(error) or type(error).__name__
        return errors.ConnectionLost(f"{self._connection.host}:{self._connection.port}: {said}")
