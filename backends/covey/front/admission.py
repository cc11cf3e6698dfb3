"""Who may ask now: bounds for everybody together and for each caller, whose name is its address. Knows no protocol.

A caller has a bucket of tokens that fills at `front.rate`; a request takes one, and one more for every 16 KiB. When
callers have keys, a key's name stands in the address's place.
"""

from __future__ import annotations

import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from covey.front.failures import TooMany
from covey.profile import FrontSettings
from covey_client.errors import Overloaded

BURST_SECONDS = 4.0  # of the rate, that a caller may save up
WEIGHT_BYTES = 16 << 10
MOST_CALLERS = 10_000  # whose buckets are known: of more, those that asked longest ago begin with a full one
DRAINING = "the server is draining; no new requests; try again in 5 s"
DOWN = "the server is starting; try again in 2 s"


class Admission:
    """Counts what is in flight."""

    def __init__(self, settings: FrontSettings, now: Callable[[], float] = time.monotonic) -> None:
        self._settings, self._now = settings, now
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # caller -> tokens, and when
        self._connections: Counter[str] = Counter()
        self._requests: Counter[str] = Counter()
        self.draining = False

    @contextmanager
    def request(self, caller: str, size: int) -> Iterator[None]:
        """While a request of so many bytes is in flight. Raises Overloaded, or TooMany where it is the caller."""
        if self.draining:
            raise Overloaded(DRAINING)
        self.charge(caller, size)
        if sum(self._requests.values()) >= self._settings.requests:
            raise Overloaded(f"queue full: {self._settings.requests} requests are in flight; try again in 1 s")
        with _counted(self._requests, caller, self._settings.requests // 2, "requests in flight"):
            yield

    @contextmanager
    def connection(self, caller: str) -> Iterator[None]:
        """While a connection, or a gRPC call, of this caller's is open."""
        with _counted(self._connections, caller, self._settings.connections // 2, "connections or calls"):
            yield

    def charge(self, caller: str, size: int = 0) -> None:
        """Take a request's weight from the caller's bucket; raises TooMany."""
        rate, now = self._settings.rate, self._now()
        full = max(1.0, rate * BURST_SECONDS) + self._settings.message_bytes / WEIGHT_BYTES
        tokens, at = self._buckets.pop(caller, (full, now))
        tokens = min(full, tokens + rate * (now - at))
        weight = 1.0 + size / WEIGHT_BYTES
        self._buckets[caller] = (tokens - weight if tokens >= weight else tokens, now)
        if len(self._buckets) > MOST_CALLERS:
            self._buckets.popitem(last=False)
        if tokens < weight:
            seconds = math.ceil((weight - tokens) / rate)
            raise TooMany(f"more than {rate:g} requests a second of one address; try again in {seconds} s")


@contextmanager
def _counted(counts: Counter[str], caller: str, most: int, what: str) -> Iterator[None]:
    if counts[caller] >= most:
        raise TooMany(f"more than {most} {what} of one address; try again in 1 s")
    counts[caller] += 1
    try:
        yield
    finally:
        counts[caller] -= 1
        if not counts[caller]:
            del counts[caller]
