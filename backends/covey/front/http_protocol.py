"""uvicorn's HTTP/1.1 with early limits on headers, bodies, chunks, connections, and the time in which a request must
arrive. uvicorn's own settings only limit the connections of all addresses together, not bodies or that time.

Chunks must be large as well: a parser needs as long for a chunk of one byte as for a large one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import h11
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol, RequestResponseCycle

from covey.contracts.profile import FrontSettings
from covey.front import proxies
from covey.front.admission import Admission
from covey.front.connection_limit import Slot
from covey.front.failures import TooMany
from covey.front.openai import errors

HEADER_BYTES = 16 << 10
MOST_HEADERS = 64
FREE_CHUNKS, CHUNK_BYTES = 64, 512  # a body may have this many chunks, and one more for each of these bytes
SLOW_READER_SECONDS = 60.0  # in which a caller must read some of the waiting data
LINGER_SECONDS = 1.0  # for a refused sender to receive the answer before the connection is cut


class Refused(h11.RemoteProtocolError):
    """The rest of the request will not be read."""


class BoundedConnection(h11.Connection):
    """Refuses a request by its headers."""

    def __init__(self, most: int) -> None:
        super().__init__(h11.SERVER, HEADER_BYTES)
        self._most = most
        self.problem = 400, "this is not HTTP/1.1"
        self.path = ""  # of the last request
        self._came = self._chunks = 0  # of its body

    def next_event(self) -> Any:
        try:
            event = super().next_event()
        except h11.RemoteProtocolError as error:
            if error.error_status_hint != 400:
                self.problem = error.error_status_hint, str(error)
            raise
        if isinstance(event, h11.Request):
            self.path = event.target.decode("latin-1").partition("?")[0]
            self._came = self._chunks = 0
            self._check(event)
        elif isinstance(event, h11.Data):
            self._came += len(event.data)
            self._chunks += event.chunk_start
            if self._came > self._most:
                self._refuse(413, f"got a chunked body of more bytes, allowed: at most {self._most}")
            if self._chunks > FREE_CHUNKS + self._came // CHUNK_BYTES:
                allowed = f"at most {FREE_CHUNKS}, and one for every {CHUNK_BYTES} bytes"
                self._refuse(413, f"got a body of {self._chunks} chunks in {self._came} bytes, allowed: {allowed}")
        elif isinstance(event, h11.EndOfMessage):
            self._check_count(event.headers)  # of a trailer
        return event

    def _check(self, request: h11.Request) -> None:
        headers, size = dict(request.headers), len(request.target)
        self._check_count(request.headers)
        size += sum(len(name) + len(value) for name, value in request.headers)
        if size > HEADER_BYTES:
            self._refuse(431, f"got a target and headers of {size} bytes, allowed: at most {HEADER_BYTES}")
        if b"transfer-encoding" in headers and b"content-length" in headers:  # a proxy may have trusted the other one
            self._refuse(400, "got a chunked body with a Content-Length, allowed: one of them")
        if headers.get(b"content-encoding", b"identity") != b"identity":
            self._refuse(415, "got a compressed body, allowed: one without a Content-Encoding")
        if int(headers.get(b"content-length", 0)) > self._most:
            self._refuse(413, f"got a body of {int(headers[b'content-length'])} bytes, allowed: at most {self._most}")

    def _check_count(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        if len(headers) > MOST_HEADERS:
            self._refuse(431, f"got {len(headers)} headers, allowed: at most {MOST_HEADERS}")

    def _refuse(self, status: int, text: str) -> None:
        self.problem = status, text
        raise Refused(text, error_status_hint=status)


class BoundedProtocol(H11Protocol):
    """An HTTP connection with limits on its messages and waits."""

    admission: Admission  # set in the subclass that `bounded` makes
    settings: FrontSettings

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.conn: BoundedConnection = BoundedConnection(self.settings.message_bytes)
        self._slot: Slot | None = None
        self._refused = False
        self._late: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._app, self.app = self.app, self._in_turn
        self._turn: asyncio.Future[None] | None = None  # of the current request
        self._begun: RequestResponseCycle | None = None  # of the last request that got its turn

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        try:
            self._slot = self.admission.connections.acquire(self._address, partial(self._give_up, 429))
        except TooMany as error:
            self._refused = True
            self._answer(429, str(error))
            transport.close()
            return
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._slot is not None:
            self._slot.release()
        self._stop_clock()
        self._read_again()
        super().connection_lost(exc)
        self._leave_turn()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        super().data_received(data)
        if self._here:
            self._stop_clock()
        elif self._late is None:
            self._wait()
        if self._slot is not None:
            if self._here and self._begun is self.cycle:
                self._slot.serve()
            else:
                self._slot.came(len(data))

    @property
    def _here(self) -> bool:
        """Return whether a request has arrived completely."""
        return self.conn.their_state not in (h11.IDLE, h11.SEND_BODY)

    @property
    def _address(self) -> str:
        """Return the peer's address, which may be a proxy's."""
        return self.client[0] if self.client else ""

    async def _in_turn(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request in its turn. While it waits, its connection can be cut to make room, like an unfinished one.
        If its sender leaves, it is dropped."""
        if self.cycle.disconnected:
            return
        headers = Headers(scope=scope)
        client = self.admission.proxies.client(self._address, headers.getlist(proxies.HEADER))
        scope["client"] = client, 0
        turn = self._turn = asyncio.ensure_future(self.admission.turn(client, headers.get("authorization", "")))
        try:
            await asyncio.wait([turn])
            if turn.cancelled():
                return
            turn.result()
            self._begun = self.cycle
            if self._slot is not None and self._here:
                self._slot.serve()
            await self._app(scope, receive, send)
        except asyncio.CancelledError:  # the process ends, and the time for last answers is over
            self._end()

    def _leave_turn(self) -> None:
        if self._turn is not None:
            self._turn.cancel()

    def shutdown(self) -> None:
        """Close the connection because the process ends. An answer that is being written gets some time."""
        if self._refused:
            return
        if self.conn.their_state is h11.SEND_BODY:
            self._give_up(503, "the server is stopping; try again in 1 s")
        else:
            super().shutdown()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY and self._late is None:  # the next request has begun to arrive
            self._wait()
        elif self._slot is not None and self.conn.their_state is not h11.SEND_BODY:
            # For another request, or for the turn of one that has arrived.
            self._slot.wait()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(SLOW_READER_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._read_again()

    def _read_again(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - our own text says more
        status, text = self.conn.problem
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._answer(status, text)
        self._end()

    def _wait(self) -> None:
        """Start waiting for a request."""
        assert self._slot is not None
        self._slot.wait()
        seconds = self.settings.read_seconds
        self._late = self.loop.call_later(seconds, self._give_up, 408, f"request not received within {seconds:g} s")

    def _stop_clock(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _give_up(self, status: int, text: str) -> None:
        self._stop_clock()
        begun = self.cycle is None or self.conn.their_state is not h11.IDLE  # not just kept alive
        if begun and self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._answer(status, text)
        self._end()

    def _answer(self, status: int, text: str) -> None:
        busy = status in (429, 503)
        said: dict[str, Any] = {"error": f"[{'UNAVAILABLE' if busy else 'INVALID_ARG'}] {text}"}
        if not errors.tritons(self.conn.path):
            said = errors.shaped(status, text)
        body = json.dumps(said).encode()
        again = b"retry-after: 1\r\n" if busy else b""
        head = b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\nconnection: close\r\n%scontent-length: %d\r\n\r\n"
        self.transport.write(head % (status, STATUS_PHRASES[status], again, len(body)) + body)

    def _end(self) -> None:
        """Read nothing more, and cut the connection a little later: an immediate cut would lose the answer."""
        self._refused = True
        if self._slot is not None:
            self._slot.release()
        if self.cycle is not None:
            self.cycle.disconnected = True  # the caller receives no more
            self.cycle.message_event.set()
        self._leave_turn()
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            with suppress(OSError):  # the caller has left
                self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.abort)


def bounded(admission: Admission, settings: FrontSettings) -> type[BoundedProtocol]:
    """Return the protocol class for one server."""
    return type("Bounded", (BoundedProtocol,), {"admission": admission, "settings": settings})
