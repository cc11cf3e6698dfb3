"""Calls that take far too long end a model's process; slow ones, new ones and those of a busy machine do not."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import NoReturn

import pytest

from covey.supervision.calls import (
    DOUBTFUL_SECONDS,
    DRAFTERS_SECONDS,
    KNOWN_CALLS,
    LEAST_SECONDS,
    LOOK_SECONDS,
    PASSES,
    UNKNOWN_SECONDS,
    Calls,
)

PIDS = {"target": 2**22, "draft": 2**22 + 1}  # of processes that there are not, so that none waits for a processor


class World:
    """A clock, a model's process, and looks as time passes."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ended: list[str] = []
        self.running = {model: {pid: 1e9} for model, pid in PIDS.items()}
        self.calls = Calls(self._end, self.running.__getitem__, self.time)

    def time(self) -> float:
        return self.now

    def _end(self, pids: Iterable[int]) -> None:
        """Triton does not say so at once."""
        for pid in pids:
            self.ended.append(next((model for model, running in self.running.items() if pid in running), "nobody"))

    def passes(self, seconds: float) -> None:
        for _ in range(round(seconds / LOOK_SECONDS)):
            self.now += LOOK_SECONDS
            self.calls.look()

    def learn(self, model: str, tokens: int, seconds: float) -> None:
        for _ in range(KNOWN_CALLS):
            with self.calls.call(model, tokens):
                self.now += seconds


@pytest.mark.parametrize(("usual", "bound"), [(0.01, LEAST_SECONDS), (3.0, PASSES * 3.0)])
def test_a_call_that_takes_far_longer_than_others_ends_the_process(usual: float, bound: float) -> None:
    world = World()
    world.learn("target", 5, usual)
    world.learn("draft", 5, usual)
    with world.calls.call("target", 5):
        with world.calls.call("draft", 4):
            world.passes(bound)
        assert not world.ended
        world.passes(LOOK_SECONDS)
        assert world.ended == ["target"]
        world.passes(UNKNOWN_SECONDS)
        assert world.ended == ["target"], "once, while the error is on its way"


def test_who_was_ended_begins_cold() -> None:
    world = World()
    world.learn("target", 5, 0.01)
    with pytest.raises(RuntimeError), world.calls.call("target", 5):
        raise RuntimeError(world.passes(LEAST_SECONDS + LOOK_SECONDS))
    assert world.ended == ["target"]
    with world.calls.call("target", 5):
        world.passes(UNKNOWN_SECONDS)
    assert world.ended == ["target"]


def test_who_was_ended_may_take_twice_as_long_the_next_time_until_it_answers() -> None:
    """Else one whose first pass takes longer than the bound is ended for ever."""
    world = World()
    for tries in range(3):
        with suppress(RuntimeError), world.calls.call("draft", 500, DRAFTERS_SECONDS):
            world.passes(2**tries * DRAFTERS_SECONDS)
            assert len(world.ended) == tries
            raise RuntimeError(world.passes(LOOK_SECONDS))
        assert len(world.ended) == tries + 1
        with world.calls.call("draft", 5, DRAFTERS_SECONDS):  # another size says nothing of that one
            pass
    with world.calls.call("draft", 500, DRAFTERS_SECONDS):
        world.passes(8 * DRAFTERS_SECONDS)
    assert len(world.ended) == 3
    with world.calls.call("draft", 500, DRAFTERS_SECONDS):
        world.passes(DRAFTERS_SECONDS + LOOK_SECONDS)
    assert len(world.ended) == 4


@pytest.mark.parametrize("ended", ["by somebody", "by this"])
def test_a_call_that_is_never_answered_ends_no_other_process(ended: str) -> None:
    """Of a process that was to answer later and has ended. The next one has done nothing."""
    world = World()
    world.learn("draft", 5, 0.01)
    world.learn("target", 5, 10.0)
    with world.calls.call("draft", 5), world.calls.call("target", 5):
        world.passes(DOUBTFUL_SECONDS + LOOK_SECONDS if ended == "by somebody" else LEAST_SECONDS + LOOK_SECONDS)
        assert world.ended == ["draft"] * (ended == "by this")
        world.running["draft"] = {2**22 + 2: 0.0}
        world.passes(10 * LEAST_SECONDS)
        with world.calls.call("draft", 5):
            world.passes(LEAST_SECONDS)
    assert world.ended == ["draft"] * (ended == "by this")


def test_watching_a_call_reads_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the quota of its control groups for each call took a tenth of a round."""

    def opened(file: object, *_given: object, **_named: object) -> NoReturn:
        raise AssertionError(f"reads {file}")

    world = World()
    monkeypatch.setattr("io.open", opened)
    with world.calls.call("target", 4), world.calls.question("target"):
        pass


def test_what_a_call_takes_is_remembered_for_a_while_alone() -> None:
    """Of a model that was quick for long and is slow now, as on a longer text."""
    world = World()
    for _ in range(100):
        world.learn("target", 5, 0.01)
    for _ in range(20):
        with world.calls.call("target", 5):
            world.now += 3.0
    with world.calls.call("target", 5):
        world.passes(PASSES * 2.0)
    assert not world.ended


def test_what_was_not_looked_at_does_not_count() -> None:
    """This process was paused with the whole machine."""
    world = World()
    world.learn("target", 5, 0.01)
    with world.calls.call("target", 5):
        world.now += 1000.0
        world.passes(LEAST_SECONDS)
    assert not world.ended


@pytest.mark.parametrize("starved", [0.8, 1.0])
def test_who_waits_for_a_processor_has_longer(monkeypatch: pytest.MonkeyPatch, starved: float) -> None:
    monkeypatch.setattr(
        "covey.supervision.calls.Starved.look", lambda _starved, pids: starved * LOOK_SECONDS * len(pids)
    )
    world = World()
    world.learn("target", 5, 0.01)
    with world.calls.call("target", 5):
        world.passes(DOUBTFUL_SECONDS + 5 * (LEAST_SECONDS - DOUBTFUL_SECONDS) - LOOK_SECONDS)
        assert not world.ended
        world.passes(5 * LOOK_SECONDS)
    assert world.ended == ["target"], "it is not spared for ever"
