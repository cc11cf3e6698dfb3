"""What other models and the launcher send, over peers that keep what they are sent."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from covey.contracts.types import Finish
from covey.public_model.link_handler import LinkHandler
from covey.tritonio.link import Message, Peer
from covey.tritonio.peers import raised
from tests.public_model.worlds import SECONDS, Building, Made, tensors

LONG = 400  # tokens


class FakePeer:
    """Stands in for a `Peer`."""

    def __init__(self, handler: LinkHandler) -> None:
        self.handler = handler
        self.heard: list[Message] = []
        self.said = threading.Semaphore(0)

    def send(self, message: Message) -> None:
        self.heard.append(message)
        self.said.release()

    def say(self, exchange: int, kind: str, parameters: Any = None, arrays: Any = None) -> None:
        message = Message(exchange, kind, parameters or {}, arrays or {})
        self.handler.received(cast("Peer", self), message)

    def next(self) -> Message:
        assert self.said.acquire(timeout=SECONDS), "a caller without an answer"
        return self.heard.pop(0)

    def leave(self) -> None:
        self.handler.lost(cast("Peer", self))


def handler_of(world: Any) -> LinkHandler:
    return LinkHandler(world.life, world.requests)


def test_a_request_is_answered_under_its_exchange(made: Made) -> None:
    world = made().begin()
    caller = FakePeer(handler_of(world))
    caller.say(7, "submit", arrays=tensors())
    message = caller.next()
    while not message.arrays["finish_reason"][0]:
        message = caller.next()
    assert (message.exchange, message.kind) == (7, "answer")
    arrays = message.arrays
    assert (arrays["finish_reason"][0], arrays["num_output_tokens"][0]) == (Finish.LENGTH.value.encode(), 3)
    assert not caller.handler._open
    caller.say(7, "cancel")  # of what has ended
    caller.say(8, "submit", arrays=tensors(0))
    message = caller.next()
    assert (message.exchange, message.kind) == (8, "error")
    assert "max_tokens" in str(raised(*message.value))


def test_who_cancels_or_leaves_has_nothing_running_any_more(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    world = made().begin()
    service = world.life.wait(SECONDS)
    cancelled: list[int] = []
    cancel = service.engine.cancel

    def noted(key: int, finish: Finish = Finish.CANCELLED) -> None:
        cancelled.append(key)
        cancel(key, finish)

    monkeypatch.setattr(service.engine, "round", lambda: threading.Event().wait(0.01))  # nothing ends by itself
    monkeypatch.setattr(service.engine, "cancel", noted)
    handler = handler_of(world)
    one, other = FakePeer(handler), FakePeer(handler)
    for exchange in (1, 2):
        one.say(exchange, "submit", arrays=tensors(LONG))
    other.say(1, "submit", arrays=tensors(LONG))
    keys = {entry: key for entry, (key, _outlet) in handler._open.items()}
    one.say(1, "cancel")
    one.say(99, "cancel")
    assert cancelled[0] == keys[id(one), 1]
    assert [handler._open[id(one), exchange][1].cancelled for exchange in (1, 2)] == [True, False]
    one.leave()
    assert set(cancelled) == {keys[id(one), 1], keys[id(one), 2]}
    assert not handler._open[id(other), 1][1].cancelled


def test_the_launcher_asks_before_and_after_there_is_an_engine(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("covey.public_model.link_handler.ANSWER_SECONDS", 0.02)
    building = Building(monkeypatch)
    world = made().begin()
    launcher = FakePeer(handler_of(world))
    launcher.say(0, "serves")
    assert launcher.next().value is False
    launcher.say(0, "drain")
    assert launcher.next() == Message(0, "draining", None), "how many are open is not known"
    building.goes_on.set()
    world.life.wait(SECONDS)
    launcher.say(0, "serves")
    assert launcher.next().value is True
    launcher.say(0, "drain")
    assert launcher.next().value == 0
    assert world.life.check().memory._closed, "nobody is loaded or unloaded any more"
    launcher.say(1, "submit", arrays=tensors())
    assert "draining" in launcher.next().value[1]
