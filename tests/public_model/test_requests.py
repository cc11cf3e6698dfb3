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
from covey.public_model import build, life
from covey.text.streaming import Streamer
from covey.tritonio.slow_jobs import LONG
from tests.public_model.worlds import SECONDS, Building, Made, Outlet, tensors


def text(value: str) -> Any:
    return np.array([value.encode()], np.object_)


def test_who_comes_before_there_is_an_engine_is_served_by_it_and_its_time_counts(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    building = Building(monkeypatch)
    world = made().begin()
    outlets = [world.ask() for _ in range(3)]
    question = world.ask({"inspect": text("facts")})
    time.sleep(0.2)
    assert not any(outlet.ended.is_set() for outlet in (*outlets, question))
    building.goes_on.set()
    for outlet in outlets:
        assert outlet.ended.wait(SECONDS)
        assert (outlet.chunks[-1].finish, outlet.chunks[-1].num_output) == (Finish.LENGTH, 3)
        ttft = outlet.chunks[-1].ttft
        assert ttft is not None
        assert ttft >= 0.2
    assert question.ended.wait(SECONDS)
    assert json.loads(question.reports[0])["model"] == "hash"


def test_a_question_ends_no_measuring(made: Made) -> None:
    world = made().begin()
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
    world = made().begin()
    outlets = [world.ask(), world.ask({"inspect": text("facts")})]
    goes_on.set()
    for outlet in (*outlets, world.ask()):
        assert outlet.ended.wait(SECONDS)
        assert outlet.errors == ["the target did not come up"]
    assert world.left.wait(SECONDS), "another start may succeed"
    assert not world.metrics.refused.called


def test_whose_fault_it_is_and_who_comes_to_a_full_queue_is_counted(made: Made) -> None:
    world = made().begin()
    for wanted, told in ((tensors(0), "max_tokens"), (tensors(3, stream=np.array([True])), "stream")):
        assert told in world.answered(wanted, streams=False).errors[0]
    world.life.wait().drain()
    assert world.answered().errors == ["the server is draining; no new requests"]
    assert world.metrics.refused.call_count == 3
    assert world.life.wait().open == 0


def test_what_nobody_foresaw_ends_that_request_alone(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    world = made().begin()
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
    world = made().begin()
    service = world.life.wait(SECONDS)
    queue = {"grammar": service.new_grammars, "prompt": service.long_prompts}[slow]
    look, long = {"grammar": ("has_new_grammar", True), "prompt": ("prompt_bytes", LONG)}[slow]
    working, goes_on, parse = threading.Event(), threading.Event(), service.parser.parse

    def held(key: int, arrival: float, tensor: Any, parameters: Any) -> Any:
        if tensor("slow") is not None:
            working.set()
            assert goes_on.wait(SECONDS)
        return parse(key, arrival, tensor, parameters)

    monkeypatch.setattr(service.parser, look, lambda tensor: long if tensor("slow") is not None else 0)
    monkeypatch.setattr(service.parser, "parse", held)
    first = Outlet()
    world.requests.take(world.requests.new_key(), first, tensors(slow=np.zeros(1)), {})  # returns at once
    assert working.wait(SECONDS)
    waiting = world.ask(tensors(slow=np.zeros(1)))
    assert world.answered().chunks, "nobody waits behind it"
    queue.refuse()
    goes_on.set()
    assert waiting.ended.wait(SECONDS)
    assert waiting.errors == ["the server is stopping"]
    assert first.ended.wait(SECONDS)
    assert first.chunks


def test_a_request_that_comes_while_the_engine_dies_is_failed_and_so_is_the_next(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Streamer, "fail_all", lambda *_arguments: None)  # it was called just before
    monkeypatch.setattr(life, "STOP_SECONDS", 0.1)
    world = made().begin()
    service = world.life.wait(SECONDS)
    submit = service.engine.submit

    def dies(*_nothing: object) -> None:
        raise KeyError("unforeseen")

    def submitted(request: Any) -> None:
        monkeypatch.setattr(service.engine, "round", dies)
        submit(request)
        world.life._thread.join(SECONDS)  # type: ignore[union-attr]

    monkeypatch.setattr(service.engine, "submit", submitted)
    for _ in range(2):
        assert world.answered().errors == ["the engine has stopped after an internal error; see the server's log"]
    assert service.open == 0
    assert world.left.wait(SECONDS), "whoever brings back the dead must see it"
