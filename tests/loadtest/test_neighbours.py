"""The bench of neighbours: two tenants with a key each, and what counts as unfair."""

from __future__ import annotations

from pathlib import Path

import pytest

from covey import profile
from covey.front.failures import NoKey
from covey.front.keys import Keys
from covey_client import Overloaded
from loadtest.neighbours import __main__ as neighbours
from loadtest.neighbours.attack import BOMB, BOMBS, CALLERS, FLOOD, STREAMS


def test_each_tenant_has_a_key_that_the_front_knows(tmp_path: Path) -> None:
    path = neighbours._profile(tmp_path, victim="one", other="two")
    keys = Keys(profile.load(path).front.keys)
    assert [keys.owner(f"Bearer {key}").name for key in ("one", "two")] == ["victim", "other"]
    with pytest.raises(NoKey):
        keys.owner("Bearer three")


def test_a_bomb_is_a_megabyte_and_there_are_four_hundred_streams() -> None:
    assert len(BOMB) == 10**6
    assert CALLERS[STREAMS] == 400
    assert CALLERS[BOMBS] == 4


class _Stream(list[int]):
    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __next__(self) -> int:
        return 0


class _Client:
    """Refuses every other stream."""

    asked = 0

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> _Client:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def stream(self, *_: object, **__: object) -> _Stream:
        _Client.asked += 1
        if _Client.asked % 2:
            raise Overloaded("full; try again in 1 s")
        return _Stream()


def test_a_refusal_is_part_of_the_wait_and_the_median_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "Client", _Client)
    monkeypatch.setattr(neighbours, "PAUSE", 0.0)

    class Server:
        front_grpc = ""

    waits = neighbours._first_tokens(Server(), "key", 3)  # type: ignore[arg-type]
    assert len(waits) == 3
    assert min(waits) >= 1.0
    found = neighbours._found({"alone": [1.0, 1.0, 9.0], FLOOD: [1.0, 4.0, 4.0]})
    assert found["ratios"] == {"alone": 1.0, FLOOD: 4.0}
    assert found["worst_s"] == {"alone": 9.0, FLOOD: 4.0}
