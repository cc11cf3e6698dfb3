"""A model's life without Triton: who waits for an engine, who is told of a failure, and who leaves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import cast

import pytest

from covey.contracts.errors import CoveyError, Overloaded, PortError, SettingError
from covey.serving import life as module
from covey.serving.life import Life
from covey.serving.service import Service

SECONDS = 10.0
UNFORESEEN = "the engine could not start, after an internal error; see the server's log"


class Stub:
    """Stands in for a `Service`: runs until it is stopped, or raises when it is told to."""

    def __init__(self, open_requests: int = 0) -> None:
        self.open = open_requests
        self.ends = threading.Event()
        self.error: Exception | None = None
        self.told: list[str] = []
        self.runs = threading.Event()

    def run(self) -> None:
        self.runs.set()
        assert self.ends.wait(SECONDS)
        if self.error is not None:
            raise self.error

    def fail(self, error: CoveyError) -> None:
        self.told.append(str(error))
        self.open = 0

    def stop(self) -> None:
        self.ends.set()

    def die(self, error: Exception) -> None:
        self.error = error
        self.ends.set()


class World:
    """A life and how often its model left."""

    def __init__(self) -> None:
        self.life, self.stub = Life(), Stub()
        self.left = threading.Semaphore(0)
        self.leaves = 0

    def begin(self, start: Callable[[], object] | None = None) -> None:
        self.life.begin(cast("Callable[[], Service]", start or (lambda: self.stub)), self._leave)

    def _leave(self) -> None:
        self.leaves += 1
        self.left.release()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(module, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(module, "LEAVE_SECONDS", 0.0)
    return World()


def raising(error: Exception) -> Callable[[], object]:
    def start() -> object:
        raise error

    return start


def waiting(life: Life, count: int) -> tuple[list[threading.Thread], list[object]]:
    """So many callers that wait for a service, and what each got."""
    got: list[object] = []

    def wait() -> None:
        try:
            got.append(life.wait(SECONDS))
        except CoveyError as error:
            got.append(str(error))

    threads = [threading.Thread(target=wait) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads, got


def test_whoever_comes_before_there_is_an_engine_waits_for_it(world: World) -> None:
    built = threading.Event()

    def start() -> object:
        assert built.wait(SECONDS)
        return world.stub

    world.begin(start)
    threads, got = waiting(world.life, 3)
    with pytest.raises(Overloaded, match="still starting"):
        world.life.wait(0.01)
    assert world.life.serves(0.0) is False
    assert not got
    built.set()
    for thread in threads:
        thread.join(SECONDS)
    assert got == [world.stub] * 3
    assert world.life.serves(0.0) is True
    world.life.end()
    world.life.join()
    assert not world.leaves


@pytest.mark.parametrize(
    ("error", "told", "leaves"),
    [
        (PortError("no target"), "no target", True),
        (SettingError("no such folder"), "no such folder", False),
        (KeyError("unforeseen"), UNFORESEEN, False),
    ],
)
def test_a_start_that_fails_is_told_to_who_waits_and_left_where_another_may_succeed(
    world: World, error: Exception, told: str, leaves: bool
) -> None:
    threads, got = waiting(world.life, 2)
    world.begin(raising(error))
    for thread in threads:
        thread.join(SECONDS)
    assert got == [told] * 2
    assert world.life.serves(0.0) == told
    assert world.left.acquire(timeout=SECONDS if leaves else 0.05) is leaves
    world.life.end()
    world.life.join()
    with pytest.raises(CoveyError):
        world.life.check()


def test_the_model_stays_until_those_who_are_open_have_heard_of_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.stub.fail = lambda _error: None  # type: ignore[method-assign]
    world.stub.open = 1
    world.begin()
    assert world.stub.runs.wait(SECONDS)
    world.stub.die(KeyError("unforeseen"))
    assert not world.left.acquire(timeout=0.2)
    world.stub.open = 0
    assert world.left.acquire(timeout=SECONDS)
    monkeypatch.setattr(module, "STOP_SECONDS", 0.1)
    other = World()
    other.stub.fail = lambda _error: None  # type: ignore[method-assign]
    other.stub.open = 1
    other.begin()
    other.stub.die(KeyError("unforeseen"))
    assert other.left.acquire(timeout=SECONDS), "but not for ever"


def test_an_engine_that_is_cut_off_at_the_end_is_no_failure(world: World) -> None:
    world.begin()
    assert world.stub.runs.wait(SECONDS)
    world.life.end()
    world.stub.die(PortError("the target is gone"))
    world.life.join()
    assert world.life.failure is None
    assert not world.leaves


def test_a_service_that_is_there_only_after_the_end_is_stopped_at_once(world: World) -> None:
    began, built = threading.Event(), threading.Event()

    def start() -> object:
        began.set()
        assert built.wait(SECONDS)
        return world.stub

    world.begin(start)
    assert began.wait(SECONDS)
    world.life.end()
    ending = threading.Thread(target=world.life.join)
    ending.start()
    time.sleep(0.05)  # it has found no service to stop
    built.set()
    ending.join(SECONDS)
    assert not ending.is_alive()
    assert world.stub.runs.is_set()
    assert world.stub.ends.is_set()
