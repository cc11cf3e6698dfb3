"""Who is cut where a door has no room: the slowest of whoever holds most, and nobody who is being answered."""

from __future__ import annotations

import pytest

from covey.front.failures import TooMany
from covey.front.rooms import GRACE_SECONDS, WAITING_MESSAGES, Room, Stay

PACE, MESSAGE = 100.0, 1000


class Door:
    def __init__(self, most: int = 8) -> None:
        self.now = 0.0
        self.room = Room(most, MESSAGE, PACE, "connections", lambda: self.now)
        self.cut: list[str] = []

    def enter(self, address: str, name: str = "") -> Stay:
        return self.room.enter(address, lambda _text: self.cut.append(name or address))

    def of(self, address: str) -> int:
        return len(self.room._stays.get(address, ()))


def test_who_holds_most_makes_room_for_who_holds_less() -> None:
    door = Door()
    for address in ("a", "a", "a", "b", "b", "b", "c", "c"):
        door.enter(address)
    door.enter("d")
    door.enter("d")
    assert sorted(door.cut) == ["a", "b"]
    assert [door.of(address) for address in "abcd"] == [2, 2, 2, 2]
    door.enter("a")
    assert door.cut[2:] == ["a"], "nobody has more than it"
    door.enter("e")
    assert len(door.cut) == 4


def test_one_address_has_half_and_its_own_slowest_goes_first() -> None:
    door = Door()
    slow, quick = door.enter("a", "slow"), door.enter("a", "quick")
    door.enter("a", "old").serve()
    door.now = GRACE_SECONDS + 1
    slow.came(10)
    quick.came(500)
    assert slow.late
    assert not quick.late
    door.enter("a", "new")
    assert not door.cut
    door.enter("a")
    assert door.cut == ["slow"]
    assert door.of("a") == 4


def test_nobody_who_is_being_answered_is_cut() -> None:
    door = Door()
    stays = [door.enter(address) for address in "aaaabbbb"]
    for stay in stays:
        stay.serve()
    for address in "ac":
        with pytest.raises(TooMany, match=f"more than {4 if address == 'a' else 8} connections"):
            door.enter(address)
    stays[0].wait()  # kept alive, for another request
    door.enter("c")
    assert door.cut == ["a"]
    for stay in stays:
        stay.leave()
        stay.leave()
    assert door.of("c") == 1
    assert set(door.room._stays) == {"c"}


def test_bytes_of_half_sent_requests_are_bounded() -> None:
    """Half of them are for one address, and what has been read whole does not count."""
    door = Door(most=64)
    half = WAITING_MESSAGES * MESSAGE // 2
    whole = door.enter("a", "whole")
    whole.came(half)
    whole.serve()
    first, second = door.enter("a", "first"), door.enter("a", "second")
    first.came(half - 10)
    second.came(10)
    assert not door.cut
    second.came(1)
    assert door.cut == ["second"], "it has come least far"
    others = [door.enter(address) for address in "bc"]
    others[0].came(half)
    others[1].came(20)
    assert door.cut == ["second", "b"]
    assert door.room._held == {"a": half - 10, "c": 20}


def test_who_has_as_many_waiting_as_anybody_makes_room_itself() -> None:
    door = Door(most=4)
    for address in "abcd":
        door.enter(address)
    door.enter("d")
    assert door.cut == ["d"]


def test_what_comes_for_one_that_was_cut_counts_no_more() -> None:
    door = Door()
    stay = door.enter("a")
    stay.came(10)
    stay.leave()
    stay.came(WAITING_MESSAGES * MESSAGE)
    stay.serve()
    assert not door.cut
    assert not door.room._held


def test_a_request_that_has_not_begun_is_not_late() -> None:
    door = Door()
    stay = door.enter("a")
    door.now = 100.0
    assert not stay.late
    stay.wait()
    stay.came(1)
    assert not stay.late
    door.now += GRACE_SECONDS + 1
    assert stay.late
    stay.serve()
    assert not stay.late
