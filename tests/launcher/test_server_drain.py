"""A drain waits for requests, and not for a model that Triton does not let go of."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from covey.launcher import Options, Server, process
from covey.supervision import processes
from covey.tritonio import link

SECONDS = 0.3  # instead of those after which nothing more is waited for
MODELS = ("covey", "target")


class Control:
    """Model control of a Triton that ends the inner model alone."""

    def __init__(self) -> None:
        self.unloaded: list[str] = []

    def unload(self, name: str) -> None:
        self.unloaded.append(name)

    def states(self) -> dict[str, str]:
        return {"covey": "UNLOADING", "target": "UNAVAILABLE" if "target" in self.unloaded else "READY"}


@pytest.fixture
def control(monkeypatch: pytest.MonkeyPatch) -> Control:
    made = Control()
    monkeypatch.setattr(Server, "control", made)
    monkeypatch.setattr(Server, "running", True)
    monkeypatch.setattr(process, "LOST_SECONDS", SECONDS)
    monkeypatch.setattr(processes, "by_model", lambda _server: {name: [1] for name in MODELS})
    return made


def draining(monkeypatch: pytest.MonkeyPatch, *counts: int | None) -> Server:
    """A server whose `covey` says that it has so many requests, one after the other, and then always the last."""
    left = list(counts)
    monkeypatch.setattr(link, "refuse_requests", lambda *_asked: left.pop(0) if len(left) > 1 else left[0])
    server: Any = Server(Options(models=MODELS))
    server.models, server._roles = MODELS, {"covey": "orchestrator", "target": "target"}
    return server


def test_a_model_without_requests_is_not_waited_for(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    server = draining(monkeypatch, 2, 1, 0)
    began = time.monotonic()
    assert server.drain(60)
    assert SECONDS < time.monotonic() - began < 30
    assert control.unloaded == ["covey"]
    assert not server._unload(time.monotonic() + 60), "tritonserver would wait for it"
    assert control.unloaded == ["covey", "target"]


@pytest.mark.parametrize(("leaves", "waits"), [(3.0, 3.0), (math.inf, 5.0)])
def test_who_may_still_read_an_answer_is_waited_for_though_not_for_ever(
    leaves: float, waits: float, control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "READ_SECONDS", 5 * SECONDS)
    began = time.monotonic()
    monkeypatch.setattr(processes, "serves_somebody", lambda *_port: time.monotonic() - began < leaves * SECONDS)
    assert draining(monkeypatch, 0).drain(60)
    assert waits * SECONDS < time.monotonic() - began < 30
    assert control.unloaded == ["covey"]


@pytest.mark.parametrize("counts", [(1,), (0, 1), (None,)])
def test_one_that_has_some_or_does_not_say_is(
    control: Control, monkeypatch: pytest.MonkeyPatch, counts: tuple[int | None, ...]
) -> None:
    assert not draining(monkeypatch, *counts).drain(3 * SECONDS)
    assert control.unloaded == ["covey"]
