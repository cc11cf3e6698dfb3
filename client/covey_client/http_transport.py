"""Requests over HTTP for threads: one connection each, which is what tells the server that a client has gone."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import weakref
from collections.abc import Iterator

from covey_client import errors, sse
from covey_client.address import NOT_HTTP, Address
from covey_client.asking import connection
from covey_client.deadline import Deadline
from covey_client.request import Request
from covey_client.response import Chunk, from_json


class HttpTransport:
    """HTTP for threads. Keeps no connection between calls, and knows the calls that are still referenced."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._context = address.ssl_context()
        self._lock = threading.Lock()
        self._calls: weakref.WeakSet[HttpCall] = weakref.WeakSet()

    def call(self, request: Request, deadline: Deadline) -> HttpCall:
        asked = connection(self._address, self._context, deadline.left())
        call = HttpCall(asked, request, dict(self._address.headers), deadline)
        with self._lock:
            self._calls.add(call)
        return call

    def close(self) -> None:
        with self._lock:
            calls = list(self._calls)
        for call in calls:
            call.cancel()


class HttpCall:
    """A connection and the answer on it."""

    def __init__(
        self, connection: http.client.HTTPConnection, request: Request, headers: dict[str, str], deadline: Deadline
    ) -> None:
        self._connection = connection
        self._request = request
        self._headers = headers | {"Content-Type": "application/json"}
        self._deadline = deadline
        self._lock = threading.Lock()  # of the two below: a socket is either seen by cancel() or never used
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
            self._go_on()
        except (OSError, http.client.HTTPException, ValueError, errors.CoveyClientError) as error:
            raise self._lost(error) from None  # ValueError: closed under the reader
        finally:
            self._connection.close()

    def cancel(self) -> None:
        """Cancel the call; a connection that is being made is closed once it is there."""
        with self._lock:
            self._cancelled = True
            opened = self._socket
        if opened is not None:
            with contextlib.suppress(OSError):  # it has ended
                opened.shutdown(socket.SHUT_RDWR)

    def _send(self, path: str) -> http.client.HTTPResponse:
        self._go_on()
        self._connection.connect()
        with self._lock:
            self._socket = self._connection.sock
        self._go_on()
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection.request("POST", path, self._request.to_json(), self._headers)
        self._socket.settimeout(self._deadline.left())
        return self._connection.getresponse()

    def _line(self, response: http.client.HTTPResponse) -> bytes:
        self._go_on()  # what has been read ahead is not worth more than what has not
        assert self._socket is not None
        self._socket.settimeout(self._deadline.left())
        return response.readline()

    def _go_on(self) -> None:
        """Raise Cancelled if the call was cancelled."""
        if self._cancelled:
            raise errors.Cancelled("the request was cancelled")

    def _lost(self, error: Exception) -> errors.CoveyClientError:
        if self._cancelled:
            return errors.Cancelled("the request was cancelled")
        if isinstance(error, errors.CoveyClientError):
            return error
        if isinstance(error, TimeoutError):
            return self._deadline.error()
        where = f"{self._connection.host}:{self._connection.port}"
        if isinstance(error, http.client.BadStatusLine) and not isinstance(error, http.client.RemoteDisconnected):
            return errors.ConnectionLost(f"{where} {NOT_HTTP}")
        return errors.ConnectionLost(f"{where}: {str(error) or type(error).__name__}")
