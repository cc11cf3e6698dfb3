"""Client for threads. `AsyncClient` in async_client.py is the same for an event loop."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from covey_client.caller import BaseClient, Timeout, Usual
from covey_client.deadline import Deadline
from covey_client.errors import Cancelled, ConnectionLost, CoveyClientError
from covey_client.response import Chunk, Completion
from covey_client.resumption import Resumption
from covey_client.wire import Settings

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Call(Protocol):
    """A request under way. It ends by itself, by an error of `errors`, or by `cancel()`."""

    def chunks(self) -> Iterator[Chunk]:
        """Yield the chunks, and block for each; raises CoveyClientError."""
        ...

    def cancel(self) -> None:
        """Cancel the call from any thread; `chunks()` then raises Cancelled. Does nothing on a call that has ended."""
        ...


class Client(BaseClient):
    """A client for many threads and many streams at once."""

    def _prepare(self) -> None:
        from covey_client.grpc_transport import GrpcTransport  # half a second

        self._transport = GrpcTransport(self._address)

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        timeout: Timeout = Usual.TIMEOUT,
        resume: bool = False,
        **settings: Unpack[Settings],
    ) -> Completion:
        """Return the whole answer to a prompt (text or token ids). With `resume` the request is sent again if the
        connection breaks, until `timeout`. Raises CoveyClientError."""
        with self._stream(prompt, settings, False, self._deadline(timeout), resume) as stream:
            return Completion.join(stream)

    def stream(
        self,
        prompt: str | Sequence[int],
        *,
        timeout: Timeout = Usual.TIMEOUT,
        resume: bool = False,
        **settings: Unpack[Settings],
    ) -> Stream:
        """Return the answer as it comes. Closing the stream, or leaving its `with`, cancels the request. With
        `resume` it continues if the connection breaks, with the same text (`covey_client.resumption`)."""
        return self._stream(prompt, settings, True, self._deadline(timeout), resume)

    def _stream(
        self,
        prompt: str | Sequence[int],
        settings: Mapping[str, object],
        stream: bool,
        deadline: Deadline,
        resume: bool,
    ) -> Stream:
        resumption = Resumption(lambda known: self._request(prompt, known, stream=stream), settings)
        return Stream(lambda: self._transport.call(resumption.request(), deadline), resumption if resume else None)

    def close(self) -> None:
        """End every call that is under way; iterating them raises Cancelled."""
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Stream:
    """An answer under way: an iterator of chunks that can be cancelled."""

    def __init__(self, ask: Callable[[], Call], resumption: Resumption | None = None) -> None:
        """`ask` makes a call, and another one if there is a `resumption` and the first broke."""
        self._ask, self._resumption = ask, resumption
        self._finished = True  # if `ask` raises there is nothing to give up
        self._call = ask()
        self._chunks = self._call.chunks()
        self._finished = False
        self._given_up = threading.Event()

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        if self._finished:
            raise StopIteration
        chunk = None
        while chunk is None:
            try:
                chunk = next(self._chunks)
                if self._resumption is not None:
                    chunk = self._resumption.new(chunk)
            except StopIteration:
                self._broke(ConnectionLost("the answer ended before it was complete"))
            except CoveyClientError as error:
                self._broke(error)
            except BaseException:
                self.close()
                raise
        if chunk.finish_reason:
            self._finish()
        return chunk

    def cancel(self) -> None:
        """Cancel the call from any thread; iterating raises Cancelled."""
        self._given_up.set()
        self._call.cancel()

    def close(self) -> None:
        """Cancel the rest, from the thread that iterates. Does nothing the second time."""
        if not self._finished:
            self._finished = True
            self._call.cancel()

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def _broke(self, error: CoveyClientError) -> None:
        """Send the request again after a while, or raise the error."""
        rest = None if self._resumption is None else self._resumption.rest(error)
        if rest is None:
            self.close()
            try:
                raise error from None
            finally:
                # Its traceback holds this frame, and thereby the call. gRPC's call locks when it is collected, which
                # must not be left to the end of the process: its threads stop there, with the lock held or not.
                del error
        if self._given_up.wait(rest):
            self.close()
            raise Cancelled("the request was cancelled")
        self._call = self._ask()
        self._chunks = self._call.chunks()

    def _finish(self) -> None:
        self._finished = True
        with contextlib.suppress(CoveyClientError):  # the answer is complete, even if the connection breaks now
            for _ in self._chunks:  # the empty final response, and the protocol's own end
                pass
