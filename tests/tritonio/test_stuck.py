"""Calls that take far too long end a model's process; slow ones, new ones and those of a busy machine do not."""

from __future__ import annotations

import threading
import time

import pytest

from covey.tritonio.stuck import KNOWN_CALLS, LEAST_SECONDS, LOOK_SECONDS, PASSES, UNKNOWN_SECONDS, Stuck, StuckWatch


class World:
    """A clock, a model's process, and looks as time passes."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ended: list[str] = []
        self.stuck = Stuck(self.ended.append, lambda: self.now)

    def passes(self, seconds: float) -> None:
        for _ in range(round(seconds / LOOK_SECONDS)):
            self.now += LOOK_SECONDS
            self.stuck.look()

    def learn(self, model: str, tokens: int, seconds: float) -> None:
        for _ in range(KNOWN_CALLS):
            with self.stuck.call(model, tokens):
                self.now += seconds


@pytest.mark.parametrize(("usual", "bound"), [(0.01, LEAST_SECONDS), (3.0, PASSES * 3.0)])
def test_a_call_that_takes_far_longer_than_others_ends_the_process(usual: float, bound: float) -> None:
    world = World()
    world.learn("target", 5, usual)
    world.learn("draft", 5, usual)
    with world.stuck.call("target", 5):
        with world.stuck.call("draft", 4):
            world.passes(bound)
        assert not world.ended
        world.passes(LOOK_SECONDS)
        assert world.ended == ["target"]
        world.passes(UNKNOWN_SECONDS)
        assert world.ended == ["target"], "once, while the error is on its way"


def test_other_sizes_and_first_calls_may_take_long() -> None:
    world = World()
    world.learn("target", 5, 0.01)
    with world.stuck.call("target", 500):
        world.passes(UNKNOWN_SECONDS)
    assert not world.ended
    with world.stuck.call("target", 5000):
        world.passes(UNKNOWN_SECONDS + LOOK_SECONDS)
    assert world.ended == ["target"]


def test_who_was_ended_begins_cold() -> None:
    world = World()
    world.learn("target", 5, 0.01)
    with pytest.raises(RuntimeError), world.stuck.call("target", 5):
        raise RuntimeError(world.passes(LEAST_SECONDS + LOOK_SECONDS))
    assert world.ended == ["target"]
    with world.stuck.call("target", 5):
        world.passes(UNKNOWN_SECONDS)
    assert world.ended == ["target"]


def test_what_was_not_looked_at_does_not_count() -> None:
    """This process was paused with the whole machine."""
    world = World()
    world.learn("target", 5, 0.01)
    with world.stuck.call("target", 5):
        world.now += 1000.0
        world.passes(LEAST_SECONDS)
    assert not world.ended


def test_the_watch_looks_by_itself() -> None:
    ended = threading.Event()
    stuck = Stuck(lambda _model: ended.set())
    for _ in range(KNOWN_CALLS):
        with stuck.call("target", 1):
            pass
    watch, began = StuckWatch(stuck), time.monotonic()
    with stuck.call("target", 1):
        assert ended.wait(20)
    assert time.monotonic() - began >= LEAST_SECONDS
    watch.stop()
