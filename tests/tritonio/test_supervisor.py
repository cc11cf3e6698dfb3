"""A model whose process died is reloaded until it is back."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from covey.errors import PortError, StubDead

SECONDS = 10.0


class Controller:
    """Stands in for the controller model: fails the calls that it is told to, then obeys."""

    def __init__(self) -> None:
        self.fails: list[tuple[str, Exception]] = []
        self.calls: list[tuple[str, str]] = []

    def control(self, action: str, model: str) -> None:
        self.calls.append((action, model))
        if self.fails and self.fails[0][0] == action:
            raise self.fails.pop(0)[1]


@pytest.fixture
def controller() -> Controller:
    return Controller()


@pytest.fixture
def supervisor(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", ModuleType("triton_python_backend_utils"))
    from covey.tritonio import supervisor

    monkeypatch.setattr(supervisor, "FIRST_REST", 0.01)
    back = threading.Semaphore(0)
    made = supervisor.Supervisor(controller.control, lambda _model: back.release())
    made.back = back
    yield made
    made.stop()


RELOAD = [("unload", "draft"), ("load", "draft")]


def test_a_reload_that_failed_is_tried_again(controller: Controller, supervisor: Any) -> None:
    controller.fails = [("load", PortError("no memory")), ("load", PortError("no memory"))]
    supervisor.report("draft", StubDead("draft"))
    assert supervisor.back.acquire(timeout=SECONDS)
    assert controller.calls == 3 * RELOAD


def test_what_lives_all_the_same_is_ended_first(controller: Controller, supervisor: Any) -> None:
    """Triton takes one that found no processor for a second for dead, and would let it live."""
    supervisor._end = lambda model: controller.calls.append(("end", model))
    supervisor.report("draft", StubDead("draft"))
    assert supervisor.back.acquire(timeout=SECONDS)
    assert controller.calls == [("end", "draft"), *RELOAD]


def test_it_says_whom_it_sees_to(controller: Controller, supervisor: Any) -> None:
    seen = []
    act = controller.control
    supervisor._control = lambda *call: (seen.append(supervisor.sees_to("draft")), act(*call))
    assert not supervisor.sees_to("draft")
    supervisor.report("draft", StubDead("draft"))
    assert supervisor.back.acquire(timeout=SECONDS)
    assert seen == [True, True]
    deadline = time.monotonic() + SECONDS
    while supervisor.sees_to("draft"):
        assert time.monotonic() < deadline


def test_one_that_is_unloaded_already_is_loaded(controller: Controller, supervisor: Any) -> None:
    controller.fails = [("unload", PortError("not loaded"))]
    supervisor.report("draft", StubDead("draft"))
    assert supervisor.back.acquire(timeout=SECONDS)
    assert controller.calls == RELOAD


def test_what_nobody_foresaw_is_tried_again_too(controller: Controller, supervisor: Any) -> None:
    controller.fails = [("load", KeyError("unforeseen"))]
    supervisor.report("draft", StubDead("draft"))
    assert supervisor.back.acquire(timeout=SECONDS)
    assert controller.calls == 2 * RELOAD


def test_one_whose_reload_hangs_holds_up_no_other(supervisor: Any) -> None:
    ends = threading.Event()
    supervisor._control = lambda _action, model: model == "draft" and ends.wait(SECONDS)
    supervisor.report("draft", StubDead("draft"))
    supervisor.report("other", StubDead("other"))
    assert supervisor.back.acquire(timeout=SECONDS)
    assert supervisor.sees_to("draft")
    ends.set()
    assert supervisor.back.acquire(timeout=SECONDS)


def test_only_a_dead_process_is_reloaded(controller: Controller, supervisor: Any) -> None:
    supervisor.report("draft", PortError("too late"))
    supervisor.report("other", StubDead("other"))
    assert supervisor.back.acquire(timeout=SECONDS)
    assert {model for _action, model in controller.calls} == {"other"}


def test_an_end_while_a_model_waits_for_its_next_try(
    controller: Controller, supervisor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[type(supervisor).__module__], "FIRST_REST", 3600.0)
    controller.fails = [("load", PortError("no memory"))]
    supervisor.report("draft", StubDead("draft"))
    while len(controller.calls) < 2:
        time.sleep(0.01)
    supervisor.stop()
    assert not supervisor.sees_to("draft")


def test_one_that_was_stopped_reloads_nothing(controller: Controller, supervisor: Any) -> None:
    controller.fails = [("load", PortError("no memory"))] * 1000
    supervisor.report("draft", StubDead("draft"))
    supervisor.stop()
    made = list(controller.calls)
    supervisor.report("other", StubDead("other"))
    supervisor.stop(0)
    time.sleep(0.1)
    assert controller.calls == made
