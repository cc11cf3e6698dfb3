"""Who is cut where a limit is reached: the oldest of whoever holds most, and nobody who is being answered."""

from __future__ import annotations

import pytest

from covey.front.connection_limit import WAITING_MESSAGES, ConnectionLimit, Slot
from covey.front.failures import TooMany

MESSAGE = 1000


class Limited:
    def __init__(self, most: int = 8) -> None:
        self.now = 0.0
        self.limit = ConnectionLimit(most, MESSAGE, "connections", lambda: self.now)
        self.cut: list[str] = []

    def acquire(self, address: str, name: str = "") -> Slot:
        return self.limit.acquire(address, lambda _text: self.cut.append(name or address))

    def of(self, address: str) -> int:
        return len(self.limit._slots.get(address, ()))


def test_who_holds_most_makes_room_for_who_holds_less() -> None:
    limited = Limited()
    for address in ("a", "a", "a", "b", "b", "b", "c", "c"):
        limited.acquire(address)
    limited.acquire("d")
    limited.acquire("d")
    assert sorted(limited.cut) == ["a", "b"]
    assert [limited.of(address) for address in "abcd"] == [2, 2, 2, 2]
    limited.acquire("a")
    assert limited.cut[2:] == ["a"], "nobody has more than it"
    limited.acquire("e")
    assert len(limited.cut) == 4


def test_nobody_who_is_being_answered_is_cut() -> None:
    limited = Limited()
    slots = [limited.acquire(address) for address in "aaaabbbb"]
    for slot in slots:
        slot.serve()
    for address in "ac":
        with pytest.raises(TooMany, match=f"more than {4 if address == 'a' else 8} connections"):
            limited.acquire(address)
    slots[0].wait()  # kept alive, for another request
    limited.acquire("c")
    assert limited.cut == ["a"]
    for slot in slots:
        slot.release()
        slot.release()
    assert limited.of("c") == 1
    assert set(limited.limit._slots) == {"c"}


def test_bytes_of_half_sent_requests_are_bounded() -> None:
    """Half of them are for one address, and what has been read whole does not count."""
    limited = Limited(most=64)
    half = WAITING_MESSAGES * MESSAGE // 2
    whole = limited.acquire("a", "whole")
    whole.came(half)
    whole.serve()
    first = limited.acquire("a", "first")
    limited.now += 1
    second = limited.acquire("a", "second")
    first.came(half - 10)
    second.came(10)
    assert not limited.cut
    second.came(1)
    assert limited.cut == ["first"]
    others = [limited.acquire(address) for address in "bc"]
    others[0].came(half)
    others[1].came(20)
    others[1].came(half - 20)
    assert limited.cut == ["first", "b"]
    assert limited.limit._held == {"a": 11, "c": half}
