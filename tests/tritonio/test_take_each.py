"""No sender outlives an `execute`: Triton closes those of one that raises, and asking a closed one ends the server."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from covey.contracts.types import NO_FLOATS, NO_INTS, Finish
from covey.text.streaming import Chunk
from tests.tritonio import adapters


class Native:
    """Triton's sender as it behaves: whoever uses one that is closed has crashed the server."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.closed = False

    def send(self, response: Any, flags: int) -> None:
        assert not self.closed, "the server has crashed"
        self.sent.append(response)
        self.closed = bool(flags)

    def is_cancelled(self) -> bool:
        assert not self.closed, "the server has crashed"
        return False


class Tensor:
    def __init__(self, name: str, value: Any) -> None:
        self._name, self._value = name, value

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> Any:
        if isinstance(self._value, Exception):
            raise self._value
        return self._value


class Request:
    """Triton's request; parameters that are bytes cannot be read, as its own cannot."""

    def __init__(self, parameters: bytes = b"{}", tensors: tuple[Tensor, ...] = ()) -> None:
        self.native = Native()
        self._parameters, self._tensors, self.id = parameters, tensors, ""

    def get_response_sender(self) -> Native:
        return self.native

    def inputs(self) -> tuple[Tensor, ...]:
        return self._tensors

    def parameters(self) -> str:
        return self._parameters.decode()

    def request_id(self) -> str:
        return self.id

    def requested_output_names(self) -> list[str]:
        return []


@pytest.fixture
def unary(monkeypatch: pytest.MonkeyPatch) -> Any:
    module, fake = adapters.load(monkeypatch, "unary")
    fake.TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
    fake.TritonError.side_effect = lambda text, _code: text
    fake.InferenceResponse.side_effect = lambda error: error
    monkeypatch.setattr(module, "POLL_SECONDS", 0.001)
    model = module.TritonPythonModel()
    model.initialize({"model_config": json.dumps({"parameters": {"orchestrator": {"string_value": "covey"}}})})
    model._peer = MagicMock()
    yield model
    model.finalize()


UNREADABLE = {
    "a name": Request(b'{"x\xff":1}'),
    "a value": Request(b'{"x":"\xc3("}'),
    "no JSON": Request(b'{"x":nonsense}'),
    "a tensor": Request(tensors=(Tensor("text_input", ValueError("not enough bytes")),)),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_what_cannot_be_read_is_the_client_s_fault_and_nobody_watches_it(unary: Any, what: str) -> None:
    good = Request(tensors=(Tensor("text_input", np.array([b"a"], np.object_)),))
    unary.execute([UNREADABLE[what], good])
    (said,) = UNREADABLE[what].native.sent
    assert said.startswith("[INVALID_ARG] ")
    assert "got" in said
    assert [sender._sender for sender, _wanted in unary._open.values()] == [good.native], "the next one is served"


def test_a_request_that_cannot_be_handed_on_is_answered_once(unary: Any) -> None:
    unary._peer.send.side_effect = TypeError("cannot be sent")
    request = Request()
    unary.execute([request])
    assert request.native.sent == ["[INTERNAL] cannot be sent"]
    assert not unary._open


def test_whoever_kept_a_sender_is_told_that_it_is_not_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    adapters.load(monkeypatch, "unary")
    from covey.tritonio import outlets

    kept: list[Any] = []

    def take(_asked: Any, sender: Any) -> None:
        kept.append(sender)
        raise KeyError("unforeseen")

    request = Request()
    outlets.take_each([request], take)
    assert len(request.native.sent) == 1
    assert not kept[0].is_cancelled()


class Sender:
    """A request's sender in the model of one response."""

    def __init__(self, cancelled: Callable[[], bool]) -> None:
        self.sent = threading.Event()
        self.is_cancelled = cancelled

    def send(self, _response: Any, *, last: bool) -> None:
        assert last
        self.sent.set()


class Vanishing(dict):  # type: ignore[type-arg]
    """An entry is gone between two looks."""

    def __contains__(self, _key: object) -> bool:
        return True


def test_an_answer_to_what_was_cancelled_meanwhile_is_dropped(unary: Any) -> None:
    from covey.tritonio import peers

    unary._open = Vanishing()
    sent: list[Any] = []
    peer = SimpleNamespace(send=sent.append)
    peers.PeerOutlet(peer, 1).send(Chunk("", NO_INTS, NO_FLOATS, Finish.LENGTH, *[0] * 6))  # type: ignore[arg-type]
    unary._received(unary._peer, sent[0])


def test_one_sender_that_fails_does_not_end_the_watch_over_the_others(unary: Any) -> None:
    def fail() -> bool:
        raise RuntimeError("unforeseen")

    broken, cancelled = Sender(fail), Sender(lambda: True)
    with unary._lock:
        unary._open = {1: (broken, frozenset()), 2: (cancelled, frozenset())}
    assert cancelled.sent.wait(10)
    assert unary._poller.is_alive()
