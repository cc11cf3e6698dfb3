"""The bench of neighbours: two tenants with a key each, and what counts as unfair."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from covey.contracts import profile
from covey.front.failures import NoKey
from covey.front.keys import Keys
from covey_client import Chunk, Overloaded, Usage
from loadtest.attack import neighbours, streams
from loadtest.attack.streams import Outcome
from loadtest.attack.tenant import BOMBS, FLOOD


def test_each_tenant_has_a_key_that_the_front_knows(tmp_path: Path) -> None:
    path = neighbours._profile(tmp_path, victim="one", other="two")
    keys = Keys(profile.load(path).front.keys)
    assert [keys.owner(f"Bearer {key}").name for key in ("one", "two")] == ["victim", "other"]
    with pytest.raises(NoKey):
        keys.owner("Bearer three")


class _Stream(list[Chunk]):
    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class _Client:
    """Refuses every other stream."""

    asked = 0

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def stream(self, *_: object, **__: object) -> _Stream:
        _Client.asked += 1
        if _Client.asked % 2:
            return _Stream([Chunk("a", (7,), (0.0,), "", 0, Usage(1, 1))])
        raise Overloaded("full; try again in 1 s")

    def close(self) -> None:
        pass


def test_a_refusal_is_part_of_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "Client", _Client)
    server = SimpleNamespace(front_grpc="", front_http="")
    found = neighbours._asked(server, "key", 2)  # type: ignore[arg-type]
    assert [answer.outcome for answer in found.answers[:2]] == ["right"] * 2
    assert min(answer.wait for answer in found.answers) >= 1.0
    assert max(answer.seconds for answer in found.answers) < 1.0, "a deadline is of the answer that came"


def test_the_median_is_judged_and_so_is_the_text() -> None:
    def answers(*waits: float, outcome: str = "right") -> list[Outcome]:
        return [Outcome("grpc", outcome, wait, wait=wait) for wait in waits]

    found = neighbours.judged({"alone": answers(1.0, 1.0, 9.0), FLOOD: answers(1.0, 4.0, 4.0)})
    assert found["ratios"] == {"alone": 1.0, FLOOD: 4.0}
    assert found["worst_s"] == {"alone": 9.0, FLOOD: 4.0}
    assert found["problems"] == ["beside flood the victim waits 4.0 times as long"]
    found = neighbours.judged({"alone": answers(1.0), BOMBS: answers(1.0, outcome="wrong")})
    assert found["problems"] == ["beside bombs the victim's answer was wrong"]
