"""Log lines name the requests that they are about, in every thread and process on the way."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from covey.contracts.errors import PortError
from covey.contracts.profile import SchedulerSettings
from covey.contracts.types import NO_INTS, DraftReply, DraftWork, Open, Sampling, TargetReply, TargetWork, Trees
from covey.loop.configuration import EngineConfig, EngineHooks
from covey.loop.engine import Engine
from covey.process.log_about import MOST, about, current, only, safe, told
from covey.process.worker import Thread
from covey.requests.scheduler import Scheduler
from covey.wire.ledger import Ledger
from tests.fakes import Collector, HashTarget, ManualClock, request
from tests.planner.test_round_planner import PrefixDrafter
from tests.static_planner import StaticPlanner
from tests.waiting import until


class Lines(logging.Handler):
    """As those of the front and of Triton's models."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(told(record.getMessage()))


@pytest.fixture
def lines() -> Iterator[list[str]]:
    handler = Lines()
    logging.getLogger("covey").addHandler(handler)
    yield handler.found
    logging.getLogger("covey").removeHandler(handler)


def test_a_line_names_what_it_is_about_and_few_of_many() -> None:
    assert told("failed") == "failed"
    with about(lambda: ("a", "b")):
        assert told("failed") == "failed [request a, b]"
        assert not only()
        with about(lambda: ("c",)):
            assert only() == "c"
            later = current()
        with about(lambda: map(str, range(MOST + 2))):
            assert told("failed").endswith(f", {MOST - 1} and 2 more]")
        with about(later):
            assert told("late") == "late [request c]"
        assert Thread("other").submit(told, "failed").result() == "failed [request a, b]"
    assert told("failed") == "failed"


@pytest.mark.parametrize("name", ["", "a b", "a\nE1124", "x" * 65, "a]", 7, None])
def test_what_could_harm_a_log_is_no_name(name: object) -> None:
    assert safe(name) == ""
    assert safe("chatcmpl-1.a:B_2") == "chatcmpl-1.a:B_2"


class Broken(HashTarget):
    def step(self, work: TargetWork) -> TargetReply:  # noqa: ARG002
        raise PortError("no answer")


class BrokenDrafter(PrefixDrafter):
    def draft(self, work: DraftWork) -> DraftReply:  # noqa: ARG002
        raise PortError("no draft")


@pytest.mark.parametrize("broken", ["target", "drafter"])
def test_who_was_asked_of_a_model_that_fails_is_in_the_engine_s_lines(lines: list[str], broken: str) -> None:
    clock, target = ManualClock(), Broken() if broken == "target" else HashTarget()
    engine = Engine(
        target,
        Scheduler.of(SchedulerSettings(), 4),
        StaticPlanner(2),
        Collector(),
        clock,
        EngineConfig({"first": BrokenDrafter(clock, 2)}),
        EngineHooks(),
    )
    engine.submit(replace(request(0, [1, 2, 3], 6), id="chatcmpl-1"))
    engine.submit(request(1, [1, 2, 4], 6))
    running = threading.Thread(target=engine.run)
    running.start()
    said = "target failed" if broken == "target" else "drafter first: no draft"
    until(lambda: any(line.startswith(said) for line in lines))
    engine.stop()
    running.join()
    assert [line for line in lines if line.startswith(said) and line.endswith(" [request chatcmpl-1, 1]")], lines


def test_a_model_s_own_lines_name_a_request_as_its_message_does(lines: list[str]) -> None:
    def opened(_opening: Open) -> None:
        logging.getLogger("covey.model").warning("unknown grammar")

    ledger: Ledger[None, DraftReply] = Ledger(opened, lambda _state, _ended: None)

    def answer(work: DraftWork) -> DraftReply:
        ledger.update(work)
        return DraftReply(NO_INTS, NO_INTS, Trees.empty(0), ledger.epoch, 0.0, 0.0)

    opening, nothing = Open(3, np.ones(3, np.int32), 3, Sampling(), name="chatcmpl-3"), (NO_INTS,) * 6
    ledger.once(DraftWork(np.asarray([3], np.int32), *nothing, opens=(opening,), origin=1), answer)
    assert lines == ["unknown grammar [request chatcmpl-3]"]
