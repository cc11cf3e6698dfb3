"""The router before several targets: a request goes on with another one where its own is gone or full, and once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from covey.contracts.errors import CoveyError, Overloaded, PortError
from covey.contracts.types import NO_FLOATS, NO_INTS, Finish
from covey.text.streaming import Chunk
from covey.wire.frames import Message
from tests.tritonio import adapters
from tests.tritonio.test_take_each import Request, Tensor

TARGETS = ("a", "b", "c")


class Line:
    """The way to one target, what went over it, and what the target says."""

    def __init__(self, target: str, receive: Callable[[Any, Message], None], lost: Callable[[Any], None]) -> None:
        self.target, self.receive, self.lost = target, receive, lost
        self.sent: list[Message] = []
        self.broken, self.tried = False, 0
        self.meanwhile: Callable[[int], object] = lambda _made: None

    def send(self, message: Message) -> None:
        self.tried += 1
        self.meanwhile(message.exchange)
        if self.broken:
            raise PortError("the other model is gone")
        self.sent.append(message)

    def close(self) -> None:
        pass

    def says(self, made: int, finish: Finish | None = None, text: str = "") -> None:
        from covey.tritonio.peers import PeerOutlet

        peer = type("Peer", (), {"send": lambda _self, message: self.receive(self, message)})()
        PeerOutlet(peer, made, streams=True).send(Chunk(text, NO_INTS, NO_FLOATS, finish, *[0] * 6))  # type: ignore[arg-type]

    def refuses(self, made: int, error: CoveyError) -> None:
        from covey.tritonio.peers import told

        self.receive(self, Message(made, "error", told(error)))


class World:
    """A router and its targets; those that are `away` cannot be reached."""

    def __init__(self, module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lines: dict[str, Line] = {}
        self.away: set[str] = set()
        monkeypatch.setattr(module.link, "Exchange", lambda *_given: Line("router", *_given[1:]))
        monkeypatch.setattr(module.link, "connect", self.connect)
        self.model = module.TritonPythonModel()
        parameters = {"targets": {"string_value": ",".join(TARGETS)}}
        self.model.initialize({"model_name": "covey", "model_config": json.dumps({"parameters": parameters})})

    def connect(self, model: str, receive: Any, lost: Any) -> Line:
        target = model.removeprefix("covey_")
        if target in self.away:
            raise PortError(f"model {model} is not up")
        return self.lines.setdefault(target, Line(target, receive, lost))

    def cut(self, target: str) -> None:
        line = self.lines.pop(target)
        line.broken = True
        self.away.add(target)
        line.lost(line)

    def ask(self, target: str = "") -> tuple[Request, int, str]:
        """The request, its id and who got it."""
        fields = {"text_input": b"a prompt", "target": target.encode()}
        tensors = tuple(Tensor(name, np.array([value], np.object_)) for name, value in fields.items() if value)
        request = Request(tensors=tensors)
        before = {name: len(line.sent) for name, line in self.lines.items()}
        self.model.execute([request])
        got = [line for name, line in self.lines.items() if len(line.sent) > before.get(name, 0)]
        return request, got[0].sent[-1].exchange if got else 0, got[0].target if got else ""

    def holders(self, made: int) -> list[str]:
        return [name for name, line in self.lines.items() if any(each.exchange == made for each in line.sent)]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    module, fake = adapters.load(monkeypatch, "router")
    fake.TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
    fake.TritonError.side_effect = lambda text, _code: text
    fake.InferenceResponse.side_effect = lambda tensors=None, error=None: error or tensors
    monkeypatch.setattr(module, "POLL_SECONDS", 0.001)
    made = World(module, monkeypatch)
    yield made
    made.model.finalize()


def test_a_target_that_is_full_hands_on_to_the_others_and_the_last_one_s_word_stands(world: World) -> None:
    request, made, first = world.ask()
    world.lines[first].refuses(made, Overloaded("its queue is full"))
    second = next(name for name in world.holders(made) if name != first)
    world.lines[second].refuses(made, Overloaded("its queue is full, too"))
    (third,) = set(world.holders(made)) - {first, second}
    assert world.model._router.open == {name: int(name == third) for name in TARGETS}
    world.lines[third].refuses(made, Overloaded("so is mine"))
    assert request.native.sent == ["[UNAVAILABLE] so is mine"]
    assert not world.model._open
    assert set(world.model._router.open.values()) == {0}


def test_whose_target_is_cut_off_before_it_answers_goes_on_with_another(world: World) -> None:
    request, made, first = world.ask()
    world.cut(first)
    (second,) = set(world.holders(made)) - {first}
    world.lines[second].says(made, text="some")
    world.cut(second)
    assert request.native.sent[-1] == f"[UNAVAILABLE] model covey_{second} is gone", "what has come cannot be unsaid"
    assert len(request.native.sent) == 2
    assert not world.model._open


def test_a_request_that_names_its_target_goes_nowhere_else(world: World) -> None:
    request, made, target = world.ask("b")
    assert target == "b"
    world.lines["b"].refuses(made, Overloaded("its queue is full"))
    assert request.native.sent == ["[UNAVAILABLE] its queue is full"]
    world.away.add("c")
    request, _, target = world.ask("c")
    assert target == ""
    assert request.native.sent == ["[UNAVAILABLE] model covey_c is not up"]


def test_what_is_the_request_s_own_fault_is_tried_nowhere_else(world: World) -> None:
    request, made, target = world.ask()
    world.lines[target].receive(world.lines[target], Message(made, "error", ["INVALID_ARG", "max_tokens: got -1"]))
    assert request.native.sent == ["[INVALID_ARG] max_tokens: got -1"]
    assert world.holders(made) == [target]


def test_one_that_was_cancelled_is_handed_to_nobody(world: World) -> None:
    _, made, first = world.ask()
    world.model._cancel(made)
    assert world.lines[first].sent[-1] == Message(made, "cancel")
    world.lines[first].refuses(made, Overloaded("its queue is full"))
    world.cut(first)
    assert world.holders(made) == []
    assert set(world.model._router.open.values()) == {0}


@pytest.mark.parametrize("named", ["", "a"])
def test_one_that_is_cancelled_while_it_cannot_be_sent_is_handed_to_nobody(world: World, named: str) -> None:
    world.ask("a")
    line = world.lines["a"]
    line.broken, line.meanwhile = True, world.model._ended
    for target in "bc":
        world.ask(target)
    request, made, got = world.ask(named)
    assert (made, got) == (0, "")
    assert not request.native.sent
    assert world.model._router.open == {"a": 1, "b": 1, "c": 1}


def test_a_line_that_breaks_while_a_request_goes_over_it_loses_nobody(world: World) -> None:
    requests = [world.ask() for _ in range(3)]
    assert {target for _, _, target in requests} == set(TARGETS)
    world.lines["a"].broken = True
    found = [world.ask()[2] for _ in range(3)]
    assert "a" not in found, "it is passed over"
    assert world.lines["a"].tried == 2, "and not tried first for a while"
    assert not any(request.native.sent for request, _, _ in requests)


def test_the_last_answer_ends_a_request_and_its_prompt_is_let_go_with_the_first(world: World) -> None:
    request, made, target = world.ask()
    assert world.model._open[made].asked is not None
    world.lines[target].says(made, text="some")
    assert world.model._open[made].asked is None
    world.lines[target].says(made, Finish.LENGTH, text="more")
    assert not world.model._open
    assert len(request.native.sent) == 2
    assert request.native.closed
