"""Decides which requests to admit now, by limits for all callers together and for each one. A caller is an address, or
the owner of a key. Knows no protocol.

A caller has a bucket of tokens that fills at its rate. A request takes one token, and one more for every 16 KiB.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from covey.contracts.profile import FrontSettings
from covey.front.connection_limit import ConnectionLimit
from covey.front.failures import NoKey, TooMany, refused
from covey.front.keys import Key, Keys
from covey.front.proxies import Proxies
from covey_client.errors import Overloaded

BURST_SECONDS = 4.0  # of the rate that a caller may save up
WEIGHT_BYTES = 16 << 10
MOST_CALLERS = 10_000  # with known buckets; beyond this, the longest silent ones start again with a full bucket
# Requests that one address may send without being admitted, or that cost nothing, such as health checks: times its
# rate, and at least this many per second. Faster ones wait.
READS, LEAST_READS, READ_BURST_SECONDS = 2.0, 100.0, 1.0
OF_KEY = "key "  # no address begins like this
OF_ADDRESS = "address "  # tenant of an address without a key; no request may name such a tenant
DRAINING = "the server is draining; no new requests; try again in 5 s"
DOWN = "the server is starting; try again in 2 s"


@dataclass(frozen=True)
class Caller:
    """The address or key owner whose limits apply to a request."""

    name: str
    tenant: str = ""  # of all its requests; "" if each request may name one


class Admission:
    """Counts requests in flight, and holds each caller's bucket of tokens."""

    def __init__(self, settings: FrontSettings, now: Callable[[], float] = time.monotonic) -> None:
        self._settings, self._now = settings, now
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # caller -> tokens, and their time
        self.proxies = Proxies(settings.proxies)
        bounds = settings.connections, settings.message_bytes
        self.connections = ConnectionLimit(*bounds, "connections", now, self.proxies.trusted)
        self.calls = ConnectionLimit(*bounds, "calls", now)
        self._requests: Counter[str] = Counter()
        self._reads: OrderedDict[str, float] = OrderedDict()  # address or key -> when everything that it sent is read
        self._read_seconds = 1.0 / max(LEAST_READS, READS * settings.rate)
        self._keys = Keys(settings.keys) if settings.keys else None
        self._named: OrderedDict[str, dict[str, float]] = OrderedDict()  # address -> tenant -> last time
        self.draining = False

    @property
    def drained(self) -> bool:
        """Return whether a drain's last request has been answered. No more requests are admitted."""
        return self.draining and not self._requests

    def caller(self, address: str, authorization: str) -> Caller:
        """Return the caller. Raises NoKey, or Overloaded if the keys cannot be read; both cost as much as a request."""
        if self._keys is None:
            return Caller(address)
        try:
            tenant = self._keys.owner(authorization).name
        except (NoKey, Overloaded):
            self.charge(address)
            raise
        return Caller(f"{OF_KEY}{tenant}", tenant)

    def reader(self, address: str, authorization: str) -> str:
        """Return the name to charge for reading: a valid key's owner, or the address."""
        if self._keys is not None:
            with suppress(NoKey, Overloaded):
                return f"{OF_KEY}{self._keys.owner(authorization).name}"
        return address

    def tenant(self, caller: Caller, named: str) -> str:
        """Return a request's tenant: the key's owner, else the named tenant, else the address. So an anonymous address
        gets no more than a tenant's share. Raises InvalidRequest, or TooMany if an address names too many tenants."""
        if caller.tenant:
            if named not in ("", caller.tenant):
                raise refused("tenant", named, f"{caller.tenant!r}, whose key this is")
            return caller.tenant
        if not named:
            return OF_ADDRESS + caller.name
        if named.startswith(OF_ADDRESS):
            raise refused("tenant", named, f"a name that does not begin with {OF_ADDRESS!r}")
        now, lately, most = self._now(), self._named.pop(caller.name, {}), self._settings.tenants
        lately = {name: at for name, at in lately.items() if at > now - self._settings.answer_seconds}
        self._named[caller.name] = lately
        if len(self._named) > MOST_CALLERS:
            self._named.popitem(last=False)
        if named not in lately and len(lately) >= most:
            seconds = math.ceil(min(lately.values()) + self._settings.answer_seconds - now)
            raise TooMany(f"more than {most} tenants of one address without a key; try again in {seconds} s")
        lately[named] = now
        return named

    def announce(self, caller: str, size: int) -> None:
        """Charge the caller for a request of `size` bytes, which may still be arriving. Raises Overloaded, or TooMany
        if the caller is at its limit."""
        if self.draining:
            raise Overloaded(DRAINING)
        self.charge(caller, size)

    @contextmanager
    def in_flight(self, caller: str) -> Iterator[None]:
        """Count an announced request that has arrived while it is in flight. Raises the same errors as `announce`."""
        if self.draining:
            raise Overloaded(DRAINING)
        if sum(self._requests.values()) >= self._settings.requests:
            raise Overloaded(f"queue full: {self._settings.requests} requests are in flight; try again in 1 s")
        key = self._key(caller)
        most = key.requests if key is not None and key.requests else self._settings.requests // 2
        if self._requests[caller] >= most:
            raise TooMany(f"more than {most} requests in flight of one caller; try again in 1 s")
        self._requests[caller] += 1
        try:
            yield
        finally:
            self._requests[caller] -= 1
            if not self._requests[caller]:
                del self._requests[caller]

    async def turn(self, address: str, authorization: str) -> None:
        """Wait until the next request of this address or key may be read."""
        if seconds := self.charge_read(self.reader(address, authorization)):
            await asyncio.sleep(seconds)

    def charge_read(self, reader: str) -> float:
        """Charge the address or key for reading its next request. Return the seconds until it may be read. A refusal
        costs as much as an answer, so a flood of bad requests would slow down all callers."""
        now = self._now()
        at = max(self._reads.pop(reader, 0.0), now - READ_BURST_SECONDS)
        self._reads[reader] = at + self._read_seconds
        if len(self._reads) > MOST_CALLERS:
            self._reads.popitem(last=False)
        return max(0.0, at - now)

    def refund_read(self, reader: str) -> None:
        """Undo the charge for reading: an admitted request is charged to its caller."""
        if reader in self._reads:
            self._reads[reader] -= self._read_seconds

    def charge(self, caller: str, size: int = 0, *, requests: float = 1.0) -> None:
        """Take a request's weight from the caller's bucket; with `requests` 0 only that of its size. Raises TooMany."""
        key, now = self._key(caller), self._now()
        rate = key.rate if key is not None and key.rate else self._settings.rate
        full = max(1.0, rate * BURST_SECONDS) + self._settings.message_bytes / WEIGHT_BYTES
        tokens, at = self._buckets.pop(caller, (full, now))
        tokens = min(full, tokens + rate * (now - at))
        weight = requests + size / WEIGHT_BYTES
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
