"""Who may stay at a door: HTTP connections, or gRPC calls, bounded for all and for each address. Knows no protocol.

One that waits for its request, or for the rest of it, is cut where others find no room: of the address with most of
them, the one that is furthest behind the pace at which requests must come. For example, of two addresses that hold 340
half-sent requests each, one is cut for each caller that comes from a third.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection

from covey.front.failures import TooMany

GRACE_SECONDS = 3.0  # after which a request must keep its pace
WAITING_MESSAGES = 32  # of the longest, whose bytes come at once
ROOM = "others need the room that this took and did not use; try again in 1 s"


class Stay:
    """One connection or call."""

    def __init__(self, room: Room, address: str, cut: Callable[[str], None]) -> None:
        self._room, self.address, self.cut = room, address, cut
        self.waits, self.since, self.bytes = True, room.now(), 0

    def wait(self) -> None:
        """From now on for the next request."""
        self.waits, self.since = True, self._room.now()
        self._room.hold(self, -self.bytes)

    def came(self, size: int) -> None:
        """Bytes of a request. May cut this one, or others."""
        self._room.hold(self, size)

    def serve(self) -> None:
        """The request is here."""
        self.waits = False
        self._room.hold(self, -self.bytes)

    def leave(self) -> None:
        """Does nothing the second time."""
        self._room.without(self)

    @property
    def behind(self) -> float:
        """Bytes that should have come by now and have not."""
        return self._room.pace * max(0.0, self._room.now() - self.since - GRACE_SECONDS) - self.bytes

    @property
    def late(self) -> bool:
        """Whether what has begun to come comes too slowly."""
        return self.waits and self.bytes > 0 and self.behind > 0


class Room:
    """For so many."""

    def __init__(
        self, most: int, message_bytes: int, pace: float, what: str, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._most, self._bytes, self._what = most, WAITING_MESSAGES * message_bytes, what
        self.pace, self.now = pace, now
        self._stays: dict[str, dict[Stay, None]] = {}  # by address
        self._held: Counter[str] = Counter()  # bytes of requests that are not whole, by address

    def enter(self, address: str, cut: Callable[[str], None]) -> Stay:
        """`cut` ends the stay, saying why, while it waits. Raises TooMany."""
        own = self._stays.get(address, {})
        if len(own) >= self._most // 2 and not self._cut(own):
            raise TooMany(f"more than {self._most // 2} {self._what} of one address; try again in 1 s")
        if sum(map(len, self._stays.values())) >= self._most:
            waiting = max((_waiting(each) for each in self._stays.values()), key=len)
            if not self._cut(waiting if len(waiting) > len(own) else own):
                raise TooMany(f"more than {self._most} {self._what}; try again in 1 s")
        stay = Stay(self, address, cut)
        self._stays.setdefault(address, {})[stay] = None
        return stay

    def without(self, stay: Stay) -> None:
        own = self._stays.get(stay.address, {})
        if stay in own:
            self.hold(stay, -stay.bytes)
            del own[stay]
        if not own:
            self._stays.pop(stay.address, None)

    def hold(self, stay: Stay, more: int) -> None:
        """So many bytes more of its request; bounds those of all and of each address."""
        if stay not in self._stays.get(stay.address, ()):
            return
        stay.bytes += more
        self._held[stay.address] += more
        if self._held[stay.address] <= 0:
            del self._held[stay.address]
        while self._held[stay.address] > self._bytes // 2 or self._held.total() > self._bytes:
            most = max(self._held, key=lambda address: self._held[address])
            if not self._cut([each for each in self._stays[most] if each.bytes]):
                return

    def _cut(self, stays: Collection[Stay]) -> bool:
        """The one of them that is furthest behind, if one waits."""
        waiting = _waiting(stays)
        if not waiting:
            return False
        worst = max(waiting, key=lambda each: each.behind)
        worst.leave()
        worst.cut(ROOM)
        return True


def _waiting(stays: Collection[Stay]) -> list[Stay]:
    return [each for each in stays if each.waits]
