"""The drafters' adapter: a lone sender is answered at once, several through the queue, strangers not at all."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from covey.contracts import profile
from covey.star.callers import token_of
from covey.wire import codec
from covey.wire.ledger import new_origin
from covey.wire.token import VARIABLE
from tests.drafters.drafting import Sender, Text
from tests.tritonio import adapters

REPOSITORY = Path(__file__).parents[2] / "model_repository"
OWN = 17  # this server's token
SECRET = "secret-of-the-east-server"


class Request:
    """A message, and the sender that may answer it later."""

    def __init__(self, message: Any) -> None:
        self.message = message
        self.sent = threading.Event()
        self.response: Any = None

    def get_response_sender(self) -> Request:
        return self

    def send(self, response: Any, _flags: Any) -> None:
        assert not self.sent.is_set(), "answered twice"
        self.response = response
        self.sent.set()


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    module, fake = adapters.load(monkeypatch, "drafter")
    fake.get_input_tensor_by_name = lambda request, _name: SimpleNamespace(as_numpy=lambda: request.message)
    fake.Tensor = lambda _name, values: values
    fake.InferenceResponse = lambda outputs=(), error=None: SimpleNamespace(outputs=outputs, error=error)
    fake.TritonError = lambda text: text
    callers = tmp_path / "callers"
    callers.touch(0o600)
    callers.write_text(f"east {SECRET}\n")
    settings = tmp_path / "mine.toml"
    settings.write_text(f'models = ["draft_ngram"]\n[star]\ncallers = "{callers}"\n')
    monkeypatch.setenv(profile.PROFILE_VARIABLE, str(settings))
    monkeypatch.setenv(VARIABLE, f"{OWN:x}")
    monkeypatch.setattr(module, "to_triton", MagicMock())
    made = module.TritonPythonModel()
    config = {"parameters": {"kind": {"string_value": "ngram"}}}
    own = {"model_name": "draft_ngram", "model_repository": str(REPOSITORY / "draft_ngram"), "model_version": "1"}
    made.initialize({"model_config": json.dumps(config), **own})
    yield made
    made.finalize()


def sealed(packed: Any, token: int) -> Any:
    codec.seal(packed, token)
    return packed


def message(sender: Sender, text: Text, token: int) -> Any:
    return sealed(codec.encode(sender.work([text], 2)), token)


def answered(model: Any, sent: Any) -> Any:
    request = Request(sent)
    responses = model.execute([request])
    if responses is not None:
        assert len(responses) == 1
        return responses[0]
    assert request.sent.wait(10)
    return request.response


def test_one_sender_is_answered_at_once_and_a_second_when_its_turn_has_come(model: Any) -> None:
    here, east = Sender(MagicMock(), new_origin("here")), Sender(MagicMock(), new_origin("here"))
    request = Request(message(here, Text(1, [5, 6, 7, 5, 6]), OWN))
    responses = model.execute([request])
    assert responses is not None
    assert codec.decode_draft_reply(responses[0].outputs[0], 1).trees.tokens.tolist() == [7, 5]
    other = Request(message(east, Text(1, [8, 9, 8]), token_of(SECRET)))
    assert model.execute([other]) is None, "another is served: it goes through the queue"
    assert other.sent.wait(10)
    assert codec.decode_draft_reply(other.response.outputs[0], 1).trees.tokens.tolist() == [9, 8]
    levels = [row for row in model._service.counters() if row[0] == "covey_draft_levels_total"]
    figures = {labels["origin"]: value for _, labels, value in levels}
    assert figures == {"own": 2, "east": 2}


def test_strangers_and_damaged_messages_are_refused_and_the_model_stays_up(model: Any) -> None:
    sender = Sender(MagicMock(), new_origin("a"))
    stranger = message(sender, Text(1, [5, 6, 5]), token_of("secret-of-the-north-server"))
    assert "not of this server" in answered(model, stranger).error
    cut = message(sender, Text(1, [5, 6, 5]), OWN)[:-1]
    assert "damaged message" in answered(model, cut).error
    assert answered(model, message(sender, Text(1, [5, 6, 5]), OWN)).error is None
    facts = answered(model, sealed(codec.pack(codec.INFO_REQUEST), token_of(SECRET)))
    info = codec.decode_drafter_info(facts.outputs[0])
    assert (info.model, info.device) == ("draft_ngram", "cpu")
    assert info.resident_bytes > 1 << 20, "its process"


def test_requests_that_come_together_are_each_answered_once(model: Any) -> None:
    senders = [Sender(MagicMock(), new_origin(f"{index}")) for index in range(3)]
    requests = [Request(message(sender, Text(1, [5, 6, 5]), OWN)) for sender in senders]
    assert model.execute(requests) is None
    for request in requests:
        assert request.sent.wait(10)
        assert request.response.error is None
