"""A model whose process died is reloaded until it is back."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from covey.errors import PortError, StubDead

SECONDS = 10.0


class Control:
    """Stands in for a server's: fails the calls that it is told to, then obeys."""

    def __init__(self) -> None:
        self.fails: list[tuple[str, Exception]] = []
        self.calls: list[tuple[str, str]] = []
        self.during: Callable[[], object] = lambda: None
        self.said: dict[str, str] = {}

    def load(self, model: str) -> None:
        self._do("load", model)

    def unload(self, model: str) -> None:
        self._do("unload", model)

    def states(self) -> dict[str, str]:
        return dict(self.said)

    def _do(self, action: str, model: str) -> None:
        self.during()
        self.calls.append((action, model))
        if self.fails and self.fails[0][0] == action:
            raise self.fails.pop(0)[1]


@pytest.fixture
def control() -> Control:
    return Control()


@pytest.fixture
def supervisor(control: Control, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", ModuleType("triton_python_backend_utils"))
    from covey.tritonio import supervisor

    monkeypatch.setattr(supervisor, "FIRST_REST", 0.01)
    back = threading.Semaphore(0)
    made = supervisor.Supervisor(control, lambda _model: back.release())
    made.back = back
    yield made
    made.stop()


RELOAD = [("unload", "draft"), ("load", "draft")]


def test_a_reload_that_failed_is_tried_again(control: Control, supervisor: Any) -> None:
    control.fails = [("load", PortError("no memory")), ("load", PortError("no memory"))]
    supervisor.report("draft", StubDead("draft"))
    assert supervisor.back.acquire(timeout=SECONDS)
    assert control.calls == 3 * RELOAD


def test_what_lives_all_the_same_is_ended_first(control: Control, supervisor: Any) -> None:
    """Triton takes one that found no processor for a second for dead, and would let it live."""
    control.said["draft"] = "READY"
    supervisor._processes = lambda _model: {7: 100.0}
    supervisor._end = lambda pids: control.calls.append(("end", str(list(pids))))
    supervisor.report("draft", StubDead("draft"))
    assert supervisor.back.acquire(timeout=SECONDS)
    assert control.calls == [("end", "[7]"), *RELOAD]


@pytest.mark.parametrize("answers", [True, False])
def test_what_somebody_else_reloads_is_waited_for_and_left_alone_if_it_answers(
    control: Control, supervisor: Any, answers: bool
) -> None:
    """Two targets' orchestrators see the same drafter die: what one loads the other is not to end."""
    running: dict[int, float] = {8: 0.3}
    control.said["draft"] = "LOADING"
    asked = threading.Semaphore(0)
    failures = [] if answers else [StubDead("draft")]

    def back(_model: str) -> None:
        if failures:
            raise failures.pop()
        supervisor.back.release()

    def states() -> dict[str, str]:
        asked.release()
        return dict(control.said)

    control.states = states  # type: ignore[method-assign]
    supervisor._came_back, supervisor._processes = back, lambda _model: running
    supervisor.report("draft", StubDead("draft"))
    for _ in range(3):
        assert asked.acquire(timeout=SECONDS)
    assert not control.calls, "it is being loaded"
    control.said["draft"] = "READY"
    assert supervisor.back.acquire(timeout=SECONDS)
    assert control.calls == ([] if answers else RELOAD)


def test_one_that_runs_and_cannot_say_what_it_is_yet_is_asked_again_and_not_reloaded_again(
    control: Control, supervisor: Any
) -> None:
    """As one whose drafter is of another host that cannot be reached."""
    control.said["draft"] = "READY"
    failures = [PortError("no connection")] * 3

    def back(_model: str) -> None:
        if failures:
            raise failures.pop()
        supervisor.back.release()

    supervisor._came_back = back
    supervisor._processes = lambda _model: {8: 0.3} if control.calls else {}
    supervisor.report("draft", StubDead("draft"))
    assert supervisor.back.acquire(timeout=SECONDS)
    assert control.calls == RELOAD


@pytest.mark.parametrize("state", ["UNLOADING", "UNAVAILABLE", "FAILED"])
def test_what_has_a_young_process_but_is_not_ready_is_reloaded(control: Control, supervisor: Any, state: str) -> None:
    """Its process ends."""
    control.said["draft"] = state
    supervisor._processes = lambda _model: {8: 0.3}
    supervisor.report("draft", StubDead("draft"))
    assert supervisor.back.acquire(timeout=SECONDS)
    assert control.calls == RELOAD


def test_what_somebody_else_reloads_is_left_alone_at_the_end_too(control: Control, supervisor: Any) -> None:
    """Triton may crash where a model is unloaded that is being loaded."""
    control.said["draft"] = "LOADING"
    supervisor._end = lambda pids: control.calls.append(("end", str(list(pids))))
    supervisor.report("draft", StubDead("draft"))
    supervisor.stop(SECONDS)
    assert not control.calls
    assert not supervisor.sees_to("draft")


def test_it_says_whom_it_sees_to(control: Control, supervisor: Any) -> None:
    seen = []
    control.during = lambda: seen.append(supervisor.sees_to("draft"))
    assert not supervisor.sees_to("draft")
    supervisor.report("draft", StubDead("draft"))
    assert supervisor.back.acquire(timeout=SECONDS)
    assert seen == [True, True]
    deadline = time.monotonic() + SECONDS
    while supervisor.sees_to("draft"):
        assert time.monotonic() < deadline


def test_one_that_is_unloaded_already_is_loaded(control: Control, supervisor: Any) -> None:
    control.fails = [("unload", PortError("not loaded"))]
    supervisor.report("draft", StubDead("draft"))
    assert supervisor.back.acquire(timeout=SECONDS)
    assert control.calls == RELOAD


def test_what_nobody_foresaw_is_tried_again_too(control: Control, supervisor: Any) -> None:
    control.fails = [("load", KeyError("unforeseen"))]
    supervisor.report("draft", StubDead("draft"))
    assert supervisor.back.acquire(timeout=SECONDS)
    assert control.calls == 2 * RELOAD


def test_one_whose_reload_hangs_holds_up_no_other(
    control: Control, supervisor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends, loads = threading.Event(), list[str]()

    def load(model: str) -> None:
        loads.append(model)
        assert model != "draft" or ends.wait(SECONDS)

    monkeypatch.setattr(control, "load", load)
    for _ in range(2):
        supervisor.report("draft", StubDead("draft"))
    supervisor.report("other", StubDead("other"))
    assert supervisor.back.acquire(timeout=SECONDS)
    assert supervisor.sees_to("draft")
    ends.set()
    assert supervisor.back.acquire(timeout=SECONDS)
    supervisor.stop()
    assert sorted(loads) == ["draft", "other"], "once each"


def test_only_a_dead_process_is_reloaded(control: Control, supervisor: Any) -> None:
    supervisor.report("draft", PortError("too late"))
    supervisor.report("other", StubDead("other"))
    assert supervisor.back.acquire(timeout=SECONDS)
    assert {model for _action, model in control.calls} == {"other"}


def test_an_end_while_a_model_waits_for_its_next_try(
    control: Control, supervisor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[type(supervisor).__module__], "FIRST_REST", 3600.0)
    control.fails = [("load", PortError("no memory"))]
    supervisor.report("draft", StubDead("draft"))
    while len(control.calls) < 2:
        time.sleep(0.01)
    supervisor.stop()
    assert not supervisor.sees_to("draft")


def test_one_that_was_stopped_reloads_nothing(control: Control, supervisor: Any) -> None:
    control.fails = [("load", PortError("no memory"))] * 1000
    supervisor.report("draft", StubDead("draft"))
    supervisor.stop()
    made = list(control.calls)
    supervisor.report("other", StubDead("other"))
    supervisor.stop(0)
    time.sleep(0.1)
    assert control.calls == made
