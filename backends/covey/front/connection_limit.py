"""Limits open HTTP connections or gRPC calls, in total and for each address. Knows no protocol.

When a newcomer finds no free slot, a connection that waits for a request or the rest of it is cut. It is the one that
has waited longest, of the address with the most waiting. For example, two addresses hold 340 half-sent requests each.
Each caller from a third address then costs one of the two a connection.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection

from covey.front.failures import TooMany

WAITING_MESSAGES = 32  # of maximal length that may arrive at once
EVICTED = "the server needs this unused connection for others; try again in 1 s"


class Slot:
    """The place of one connection or call, which can be cut while it waits for a request."""

    def __init__(self, limit: ConnectionLimit, address: str, cut: Callable[[str], None]) -> None:
        self._limit, self.address, self.cut = limit, address, cut
        self.waits, self.since, self.bytes = True, limit.now(), 0

    def wait(self) -> None:
        """Start waiting for the next request."""
        self.waits, self.since = True, self._limit.now()
        self._limit.add_bytes(self, -self.bytes)

    def came(self, size: int) -> None:
        """Count bytes of a request. May cut this connection or others."""
        self._limit.add_bytes(self, size)

    def serve(self) -> None:
        """Mark the request as arrived: its connection is no longer cut."""
        self.waits = False
        self._limit.add_bytes(self, -self.bytes)

    def release(self) -> None:
        """Free the slot. Does nothing the second time."""
        self._limit.remove(self)


class ConnectionLimit:
    """Owns the used slots, and counts the bytes of unfinished requests in them."""

    def __init__(
        self,
        most: int,
        message_bytes: int,
        what: str,
        now: Callable[[], float] = time.monotonic,
        shared: Callable[[str], bool] = lambda _address: False,
    ) -> None:
        """An address that is `shared`, such as a proxy's, may use the whole limit. Others may use half."""
        self._most, self._bytes, self._what = most, WAITING_MESSAGES * message_bytes, what
        self.now, self._shared = now, shared
        self._slots: dict[str, dict[Slot, None]] = {}  # by address
        self._held: Counter[str] = Counter()  # of unfinished requests, by address

    def acquire(self, address: str, cut: Callable[[str], None]) -> Slot:
        """Return a slot. `cut` is called with the reason if the waiting slot is taken back. Raises TooMany."""
        own = self._slots.get(address, {})
        most = self._share(self._most, address)
        if len(own) >= most and not self._cut(own):
            raise TooMany(f"more than {most} {self._what} of one address; try again in 1 s")
        if sum(map(len, self._slots.values())) >= self._most:
            waiting = max((_waiting(each) for each in self._slots.values()), key=len)
            if not self._cut(waiting if len(waiting) > len(own) else own):
                raise TooMany(f"more than {self._most} {self._what}; try again in 1 s")
        slot = Slot(self, address, cut)
        self._slots.setdefault(address, {})[slot] = None
        return slot

    def remove(self, slot: Slot) -> None:
        own = self._slots.get(slot.address, {})
        if slot in own:
            self.add_bytes(slot, -slot.bytes)
            del own[slot]
        if not own:
            self._slots.pop(slot.address, None)

    def add_bytes(self, slot: Slot, more: int) -> None:
        """Count `more` bytes of a slot's request. Cuts waiting slots if one address or all together hold too many
        bytes."""
        if slot not in self._slots.get(slot.address, ()):
            return
        slot.bytes += more
        self._held[slot.address] += more
        if self._held[slot.address] <= 0:
            del self._held[slot.address]
        while self._held[slot.address] > self._share(self._bytes, slot.address) or self._held.total() > self._bytes:
            most = max(self._held, key=lambda address: self._held[address])
            if not self._cut([each for each in self._slots[most] if each.bytes]):
                return

    def _share(self, whole: int, address: str) -> int:
        return whole if self._shared(address) else whole // 2

    def _cut(self, slots: Collection[Slot]) -> bool:
        """Cut the slot that has waited longest. Return False if none waits."""
        waiting = _waiting(slots)
        if not waiting:
            return False
        oldest = min(waiting, key=lambda each: each.since)
        oldest.release()
        oldest.cut(EVICTED)
        return True


def _waiting(slots: Collection[Slot]) -> list[Slot]:
    return [each for each in slots if each.waits]
