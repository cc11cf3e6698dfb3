"""Sends requests and measures them: one `Traffic` for all users of a run. Knows no Locust, only its request event.

TTFT is from sending a request to its first token. TPOT is the time from the first token to the end over the other
tokens, by the server's count of them, since one chunk may bring several.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from covey_client.client import Client, Stream
from covey_client.errors import ConnectionLost, CoveyClientError, Overloaded
from covey_client.response import Usage
from loadtest import levels
from loadtest.arrivals import Arrival
from loadtest.asks import RequestContent
from loadtest.options import Plan
from loadtest.records import Record

Fire = Callable[..., None]  # Locust's request event
Time = Callable[[str, float], None]  # adds milliseconds to a separate row
BACK_OFF_SECONDS = 0.5  # a closed user's pause after a refusal: do not hammer a server that is down
UNFINISHED = "unfinished"
PROTOCOL = "grpc"


@dataclass
class Tally:
    """Counts running figures, for progress."""

    sent: int = 0
    done: int = 0
    failed: int = 0
    tokens: int = 0
    in_flight: int = 0
    ttfts: list[float] = field(default_factory=list)

    def add(self, record: Record) -> None:
        """Add a request that has ended."""
        self.done += record.finished
        self.failed += record.failed
        self.tokens += record.output_tokens
        if record.ttft is not None:
            self.ttfts.append(record.ttft)


class Traffic:
    """Sends and measures the requests of one run. `send` may run in many greenlets or threads at once."""

    def __init__(
        self,
        plan: Plan,
        record: Callable[[Record], None],
        fire: Fire,
        time: Time,
        *,
        clock: Callable[[], float],
        pause: Callable[[float], object],
    ) -> None:
        """`clock` counts seconds from the run's start; `pause` sleeps."""
        self.plan = plan
        self.tally = Tally()
        self.stopped = False  # closed users and arrivals end
        self.given_up = False  # requests still in flight count as unfinished
        self._record = record
        self._fire, self._time = fire, time
        self._clock = clock
        self._pause = pause
        self._lock = threading.Lock()
        self._level_rng, self._ask_rng = map(plan.rng, ("levels", "prompts"))
        self._under_way: set[Stream] = set()
        self._client = Client(plan.grpc_url, timeout=plan.timeout)

    def closed(self) -> None:
        """Take one user's turn: one request, to its end."""
        outcome = self.send(Arrival(self._clock()))
        if outcome in (ConnectionLost.__name__, Overloaded.__name__):
            self._pause(BACK_OFF_SECONDS)

    def follow(self, spawn: Callable[..., object]) -> None:
        """Send every arrival of an open shape when it is due, each in its own greenlet."""
        for arrival in self.plan.shape.arrivals(self.plan.seconds, self.plan.rng("arrivals")):
            wait = arrival.at - self._clock()
            if wait > 0:
                self._pause(wait)
            if self.stopped:
                return
            spawn(self.send, arrival)

    def send(self, arrival: Arrival) -> str:
        """Send one request and wait for its end; returns how it ended."""
        with self._lock:
            level = levels.choose(self.plan.levels, self._level_rng)
            own = self.plan.sources.get(level.name)  # the level sets the length of answers, not the trace
            ask = (own or self.plan.source).ask(Arrival(arrival.at) if own else arrival, self._ask_rng)
            self.tally.sent += 1
            self.tally.in_flight += 1
        sent = self._clock()
        blank = Record(sent, level.name, ask.topic, UNFINISHED, lag=max(0.0, sent - arrival.at))
        record = self._measured(blank, ask, level.settings if self.plan.send_slo else {})
        with self._lock:
            self.tally.in_flight -= 1
            self.tally.add(record)
        self._record(record)
        self._report(record)
        return record.outcome

    def stop(self) -> None:
        """Send no more requests; those in flight may end."""
        self.stopped = True

    def give_up(self) -> None:
        """Cancel the requests in flight."""
        self.given_up = True
        for stream in tuple(self._under_way):
            stream.cancel()

    def close(self) -> None:
        self._client.close()

    def _measured(self, blank: Record, ask: RequestContent, objective: dict[str, Any]) -> Record:
        settings: dict[str, Any] = self.plan.settings | objective | {"max_tokens": ask.max_tokens}
        if self.plan.tenant:
            settings["tenant"] = f"{self.plan.tenant} {ask.turn}"
        if ask.exact:
            settings["min_tokens"] = ask.max_tokens
        first: float | None = None
        usage, finish = Usage(), ""
        try:
            with self._client.stream(ask.prompt, **settings) as stream:
                self._under_way.add(stream)
                try:
                    for chunk in stream:
                        if first is None and chunk.tokens:
                            first = self._clock() - blank.at
                        usage, finish = chunk.usage, chunk.finish_reason
                finally:
                    self._under_way.discard(stream)
        except CoveyClientError as error:
            if self.given_up:
                return replace(blank, ttft=first)
            return replace(blank, outcome=type(error).__name__, error=str(error)[:300], ttft=first)
        e2e = self._clock() - blank.at
        others = usage.output_tokens - 1
        return replace(
            blank,
            outcome=finish,
            error="the server gave the request up" if finish in ("error", "cancelled") else "",
            ttft=first,
            tpot=(e2e - first) / others if first is not None and others > 0 else None,
            e2e=e2e,
            input_tokens=usage.input_tokens,
            reused_tokens=usage.reused_tokens,
            output_tokens=usage.output_tokens,
            draft_tokens=usage.draft_tokens,
            accepted_draft_tokens=usage.accepted_draft_tokens,
        )

    def _report(self, record: Record) -> None:
        """Report to Locust: times of a first and of later tokens, if there are any, and one event of the request."""
        if record.outcome == UNFINISHED:
            return
        timings: Mapping[str, float | None] = {"ttft": record.ttft, "tpot": record.tpot}
        for name, seconds in timings.items():
            if seconds is not None and not record.failed:
                self._time(f"{record.level} {name}", seconds * 1000)
        e2e = record.e2e if record.e2e is not None else self._clock() - record.at
        self._fire(
            request_type=PROTOCOL,
            name=f"{record.level} e2e",
            response_time=e2e * 1000,
            response_length=record.output_tokens,
            exception=CoveyClientError(f"{record.outcome}: {record.error}") if record.failed else None,
            context={"level": record.level, "topic": record.topic},
        )
