"""Who may ask now: bounds for everybody together and for each caller, which is an address or, where callers have keys,
a key's owner. Knows no protocol.

A caller has a bucket of tokens that fills at its rate; a request takes one, and one more for every 16 KiB.
"""

from __future__ import annotations

import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from covey.front.failures import NoKey, TooMany
from covey.front.keys import Key, Keys
from covey.profile import FrontSettings
from covey_client.errors import Overloaded

BURST_SECONDS = 4.0  # of the rate, that a caller may save up
WEIGHT_BYTES = 16 << 10
MOST_CALLERS = 10_000  # whose buckets are known: of more, those that asked longest ago begin with a full one
OF_KEY = "key "  # no address begins so
DRAINING = "the server is draining; no new requests; try again in 5 s"
DOWN = "the server is starting; try again in 2 s"


@dataclass(frozen=True)
class Caller:
    """Whose bounds hold for a request."""

    name: str
    tenant: str = ""  # of all that it asks; "" where each request may say it


class Admission:
    """Counts what is in flight."""

    def __init__(self, settings: FrontSettings, now: Callable[[], float] = time.monotonic) -> None:
        self._settings, self._now = settings, now
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # caller -> tokens, and when
        self._connections: Counter[str] = Counter()
        self._requests: Counter[str] = Counter()
        self._keys = Keys(settings.keys) if settings.keys else None
        self.draining = False

    def caller(self, address: str, authorization: str) -> Caller:
        """Who asks. Raises NoKey, or Overloaded where keys cannot be read; either costs as much as a request."""
        if self._keys is None:
            return Caller(address)
        try:
            tenant = self._keys.owner(authorization).name
        except (NoKey, Overloaded):
            self.charge(address)
            raise
        return Caller(f"{OF_KEY}{tenant}", tenant)

    @contextmanager
    def request(self, caller: str, size: int) -> Iterator[None]:
        """While a request of so many bytes is in flight. Raises Overloaded, or TooMany where it is the caller."""
        if self.draining:
            raise Overloaded(DRAINING)
        self.charge(caller, size)
        if sum(self._requests.values()) >= self._settings.requests:
            raise Overloaded(f"queue full: {self._settings.requests} requests are in flight; try again in 1 s")
        key = self._key(caller)
        most = key.requests if key is not None and key.requests else self._settings.requests // 2
        with _counted(self._requests, caller, most, "requests in flight of one caller"):
            yield

    @contextmanager
    def connection(self, caller: str) -> Iterator[None]:
        """While a connection, or a gRPC call, of this caller's is open."""
        with _counted(
            self._connections, caller, self._settings.connections // 2, "connections or calls of one address"
        ):
            yield

    def charge(self, caller: str, size: int = 0) -> None:
        """Take a request's weight from the caller's bucket; raises TooMany."""
        key, now = self._key(caller), self._now()
        rate = key.rate if key is not None and key.rate else self._settings.rate
        full = max(1.0, rate * BURST_SECONDS) + self._settings.message_bytes / WEIGHT_BYTES
        tokens, at = self._buckets.pop(caller, (full, now))
        tokens = min(full, tokens + rate * (now - at))
        weight = 1.0 + size / WEIGHT_BYTES
        self._buckets[caller] = (tokens - weight if tokens >= weight else tokens, now)
        if len(self._buckets) > MOST_CALLERS:
            self._buckets.popitem(last=False)
        if tokens < weight:
            seconds = math.ceil((weight - tokens) / rate)
            raise TooMany(f"more than {rate:g} requests a second of one caller; try again in {seconds} s")

    def _key(self, caller: str) -> Key | None:
        if self._keys is None or not caller.startswith(OF_KEY):
            return None
        return self._keys.named(caller.removeprefix(OF_KEY))


@contextmanager
def _counted(counts: Counter[str], caller: str, most: int, what: str) -> Iterator[None]:
    if counts[caller] >= most:
        raise TooMany(f"more than {most} {what}; try again in 1 s")
    counts[caller] += 1
    try:
        yield
    finally:
        counts[caller] -= 1
        if not counts[caller]:
            del counts[caller]
