"""Requests that come before there is an engine, while it fails, and after it has."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import numpy as np
import pytest

from covey.contracts.errors import PortError
from covey.contracts.types import Finish
from covey.public_model import build
from covey.tritonio.slow_jobs import LONG
from tests.public_model.worlds import SECONDS, Made, Outlet, tensors


def text(value: str) -> Any:
    return np.array([value.encode()], np.object_)


def test_who_comes_before_there_is_an_engine_is_served_by_it_and_its_time_counts(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    monkeypatch.setattr(build, "load_tokenizer", lambda _folder: goes_on.wait(SECONDS) and None)
    world = made()
    world.begin()
    outlets = [world.ask() for _ in range(3)]
    question = world.ask({"inspect": text("facts")})
    time.sleep(0.2)
    assert not any(outlet.ended.is_set() for outlet in (*outlets, question))
    goes_on.set()
    for outlet in outlets:
        assert outlet.ended.wait(SECONDS)
        assert (outlet.chunks[-1].finish, outlet.chunks[-1].num_output) == (Finish.LENGTH, 3)
        ttft = outlet.chunks[-1].ttft
        assert ttft is not None
        assert ttft >= 0.2
    assert question.ended.wait(SECONDS)
    assert json.loads(question.reports[0])["model"] == "hash"


def test_a_question_ends_no_measuring(made: Made) -> None:
    world = made()
    world.begin()
    assert world.answered({"inspect": text("facts")}).reports
    assert not world.life.asked.is_set()
    assert "allowed" in world.answered({"inspect": text("secrets")}).errors[0]
    assert world.answered({"inspect": np.zeros(0)}).errors, "whatever is asked is answered"


def test_those_who_wait_are_told_of_a_start_that_fails_and_are_not_counted_as_refused(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()

    def load(_folder: str) -> None:
        assert goes_on.wait(SECONDS)
        raise PortError("the target did not come up")

    monkeypatch.setattr(build, "load_tokenizer", load)
    world = made()
    world.begin()
    outlets = [world.ask(), world.ask({"inspect": text("facts")})]
    goes_on.set()
    for outlet in (*outlets, world.ask()):
        assert outlet.ended.wait(SECONDS)
        assert outlet.errors == ["the target did not come up"]
    assert world.left.wait(SECONDS), "another start may succeed"
    assert not world.metrics.refused.called


def test_whose_fault_it_is_and_who_comes_to_a_full_queue_is_counted(made: Made) -> None:
    world = made()
    world.begin()
    for wanted, told in ((tensors(0), "max_tokens"), (tensors(3, stream=np.array([True])), "stream")):
        assert told in world.answered(wanted, streams=False).errors[0]
    world.life.wait().drain()
    assert world.answered().errors == ["the server is draining; no new requests"]
    assert world.metrics.refused.call_count == 3
    assert world.life.wait().open == 0


def test_what_nobody_foresaw_ends_that_request_alone(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    world = made()
    world.begin()
    service = world.life.wait(SECONDS)
    parse = service.parser.parse

    def failing(key: int, *given: Any) -> Any:
        if key == 1:
            raise KeyError("unforeseen")
        return parse(key, *given)

    monkeypatch.setattr(service.parser, "parse", failing)
    assert world.answered().errors == ["'unforeseen'"]
    assert world.answered().chunks
    assert not world.metrics.refused.called


@pytest.mark.parametrize("slow", ["grammar", "prompt"])
def test_what_takes_long_is_done_apart_and_told_of_the_end(
    made: Made, monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    world = made()
    world.begin()
    service = world.life.wait(SECONDS)
    queue, working = {"grammar": service.new_grammars, "prompt": service.long_prompts}[slow], threading.Event()
    goes_on = threading.Event()
    if slow == "grammar":
        monkeypatch.setattr(service.parser, "has_new_grammar", lambda tensor: tensor("slow") is not None)
        monkeypatch.setattr(service.parser, "check_grammar", lambda _tensor: working.set() or goes_on.wait(SECONDS))
    else:
        parse = service.parser.parse
        monkeypatch.setattr(service.parser, "prompt_bytes", lambda tensor: LONG if tensor("slow") is not None else 0)

        def held(key: int, arrival: float, tensor: Any, parameters: Any) -> Any:
            if tensor("slow") is not None:
                working.set()
                assert goes_on.wait(SECONDS)
            return parse(key, arrival, tensor, parameters)

        monkeypatch.setattr(service.parser, "parse", held)
    first = Outlet()
    world.requests.take(world.requests.new_key(), first, tensors(slow=np.zeros(1)), {})  # returns at once
    assert working.wait(SECONDS)
    waiting = world.ask(tensors(slow=np.zeros(1)))
    assert world.answered().chunks, "nobody waits behind it"
    while not queue._queues:
        time.sleep(0.001)
    stopping = threading.Thread(target=queue.stop)
    stopping.start()
    while not queue._stopped:
        time.sleep(0.001)
    goes_on.set()
    stopping.join(SECONDS)
    assert waiting.ended.wait(SECONDS)
    assert waiting.errors == ["the server is stopping"]
    assert first.ended.wait(SECONDS)
    assert first.chunks
