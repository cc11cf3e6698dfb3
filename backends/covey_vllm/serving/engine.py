"""Requests on their way to vLLM's process, and what it brings them. Stands in for `covey.loop.engine.Engine` behind the
public model; vLLM queues, schedules and samples."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from covey.contracts.errors import Overloaded, PortError, RequestError
from covey.contracts.ports import Clock, Sink
from covey.contracts.types import NO_FLOATS, NO_INTS, NO_TOP, Finish, Progress, Request, Top
from covey.wire.frames import Message
from covey_vllm import messages
from covey_vllm.messages import Brought

GONE = "vLLM's process has ended; see the server's log"
SILENT_SECONDS = 120.0  # without a word while it has requests, after which vLLM's process is given up
LOOK_SECONDS = 1.0
UNFINISHED = "vLLM has ended this request by itself; see the server's log"


class VllmEngine:
    """Owns which requests vLLM has."""

    def __init__(self, send: Callable[[Message], None], sink: Sink, clock: Clock, most: int) -> None:
        """`send` reaches vLLM's process, and raises PortError where that has ended. `most` requests may be open."""
        self._send, self._sink, self._clock, self._most = send, sink, clock, most
        self._last_said = clock.now()  # when vLLM's process last said anything, or had nothing to say
        self._open: dict[int, Progress] = {}  # by key, the last that was told
        self._lock = threading.Lock()
        self._draining = self._stopped = False
        self._over = threading.Event()

    # ---- any thread -------------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Take a request, or raise Overloaded at once."""
        with self._lock:
            if self._draining:
                raise Overloaded("the server is draining; no new requests")
            if len(self._open) >= self._most:
                raise Overloaded(f"queue full ({self._most} requests wait or run)")
            if not self._open:
                self._last_said = self._clock.now()
            self._send(messages.submit(request))  # before anybody can cancel it
            self._open[request.key] = Progress(request.key, NO_INTS, NO_FLOATS)

    def cancel(self, key: int, finish: Finish = Finish.CANCELLED) -> None:
        """End a request before vLLM's next step. Unknown keys are ignored."""
        last = self._ended(key)
        if last is not None:
            self._sink.publish([_last_word(last, finish)])
            with suppress(PortError):  # it has ended, with all requests
                self._send(Message(key, messages.CANCEL))

    def drain(self) -> None:
        """Refuse new requests; those taken go on."""
        with self._lock:
            self._draining = True

    def stop(self) -> None:
        """Have `run` return."""
        self._stopped = True
        self._over.set()

    # ---- the engine's own thread, and the line's --------------------------------------------------------------------

    def run(self) -> None:
        """Returns when it was stopped; raises PortError when vLLM's process has ended, or is silent for too long."""
        while not self._over.wait(LOOK_SECONDS):
            if self._open and self._clock.now() - self._last_said > SILENT_SECONDS:
                raise PortError(f"vLLM's process has requests and has said nothing for {SILENT_SECONDS:g} s")
        if not self._stopped:
            raise PortError(GONE)

    def ended(self) -> None:
        """Note that vLLM's process has ended."""
        self._over.set()

    def received(self, message: Message) -> None:
        """Take a message: what a step brought, or why vLLM does not take a request; anything else is a sign of life."""
        self._last_said = self._clock.now()
        if message.kind == messages.NEWS:
            return
        if message.kind == messages.STEP:
            batch = [progress for each in messages.results(message) if (progress := self._progress(each)) is not None]
            if batch:
                self._sink.publish(batch)
            return
        last = self._ended(message.exchange)
        if last is not None:
            error = RequestError(f"vLLM does not take this request: {message.value}")
            error.code = "INVALID_ARG"
            self._sink.publish([_last_word(last, Finish.ERROR, error)])

    def _progress(self, result: Brought) -> Progress | None:
        """Return the request's progress, None where it was cancelled meanwhile."""
        with self._lock:
            last = self._open.get(result.key)
            if last is None:
                return None
            drafts = result.drafts or {}
            told = self._open[result.key] = last._replace(
                tokens=np.array(result.tokens, np.int32),
                logprobs=np.array(result.logprobs, np.float32),
                top=_top(result),
                finish=result.finish,
                error=PortError(UNFINISHED) if result.finish is Finish.ERROR else None,
                drafted=drafts.get("drafted", 0),
                accepted=drafts.get("accepted", 0),
                acceptance=tuple(drafts.get("acceptance", ())),
                drafters=tuple((name, drafted, accepted) for name, drafted, accepted in drafts.get("drafters", ())),
                rounds=last.rounds + 1,
                reused=result.reused,
                queued=result.queued,
            )
            if result.finish is not None:
                del self._open[result.key]
        return told

    def _ended(self, key: int) -> Progress | None:
        with self._lock:
            return self._open.pop(key, None)


def _top(result: Brought) -> Top:
    if not any(result.top):
        return Top.none(len(result.tokens))
    pairs = np.array(result.top, np.float64)  # [tokens, as many as were asked for, 2]
    return Top(pairs[..., 0].astype(np.int32), pairs[..., 1].astype(np.float32))


def _last_word(last: Progress, finish: Finish, error: Exception | None = None) -> Progress:
    return last._replace(tokens=NO_INTS, logprobs=NO_FLOATS, top=NO_TOP, finish=finish, error=error)
