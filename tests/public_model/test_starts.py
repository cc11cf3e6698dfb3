"""Targets that end while a model starts, and drafters that come and end then and later."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from covey.contracts.errors import CoveyError, PortError, StubDead
from covey.contracts.profile import AUTO
from covey.contracts.types import TargetInfo, TargetReply, TargetWork
from covey.public_model import start
from covey.public_model.drafter_facts import DrafterFacts
from covey.requests.roster import Roster, State
from covey.supervision.control import HTTP_VARIABLE, LOADING, READY, UNLOADED
from tests.fakes import VOCAB, HashTarget, ManualClock
from tests.public_model.worlds import SECONDS, Building, Made, facts_of

MEASURED = {"policy": "adaptive", "costs": AUTO}


class Failing(HashTarget):
    """Raises these errors, the last one first, before it says what it is. `lasts`: how often it says it after that."""

    def __init__(self, *errors: PortError, lasts: int = 1000) -> None:
        super().__init__()
        self.errors, self.lasts = list(errors), lasts

    def info(self) -> TargetInfo:
        if self.errors:
            raise self.errors.pop()
        self.lasts -= 1
        if self.lasts < 0:
            raise PortError("it has ended")
        return super().info()


def test_a_target_that_is_loading_is_waited_for(made: Made) -> None:
    world = made(target=Failing(*[PortError("loading")] * 3)).begin()
    assert world.life.wait(SECONDS)
    assert not world.ended, "nobody has found it dead"


def test_a_model_that_is_to_end_waits_for_no_target(made: Made) -> None:
    world = made(target=Failing(lasts=0)).begin()
    waiting = world.ask()
    assert not waiting.ended.wait(0.2)
    world.life.end()
    assert waiting.ended.wait(SECONDS)
    assert "the target did not start" in waiting.errors[0]


def test_a_target_that_is_taken_for_dead_and_was_too_young_to_be_ended_is_ended_later(made: Made) -> None:
    world = made(target=Failing(PortError("loading"), StubDead("not healthy"), StubDead("not healthy")))
    world.start._recover(StubDead("not healthy"))
    assert world.ended == ["target"] * 3


def test_a_target_that_ends_while_the_engine_is_built_is_found_when_it_is_asked_for_tokens(made: Made) -> None:
    """The next one has come by then: no start has failed."""
    world = made(target=Failing(lasts=1)).begin()
    assert world.answered().chunks
    assert not world.left.is_set()


def test_a_target_that_fails_while_rounds_are_measured_leaves_them_to_be_learnt(
    made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    world = made("one", target=Failing(lasts=0), **MEASURED)
    assert world.start._costs(world.drafters) is None
    assert "starting without measured cost curves" in caplog.text


def test_measuring_ends_when_somebody_asks(
    made: Made, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = made("one", **MEASURED)
    world.facts.came("one", facts_of())
    seen = threading.Event()
    step = world.target.step

    def stepped(work: TargetWork) -> TargetReply:
        seen.set()
        time.sleep(0.01)
        return step(work)

    monkeypatch.setattr(world.target, "step", stepped)
    world.begin()
    assert seen.wait(SECONDS)
    assert not world.life.serves(0.0)
    assert world.answered().chunks[-1].num_output == 3
    assert "measuring was cut short by a request" in caplog.text


def test_nothing_is_measured_while_a_model_is_loading(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HTTP_VARIABLE, "127.0.0.1:9")
    monkeypatch.setattr(start, "LOADED_SECONDS", 0.001)
    world = made("one", **MEASURED)
    world.facts.came("one", facts_of())
    world.server.said = {"target": READY, "other": LOADING}
    world.begin()
    while world.server.looks < 5:
        time.sleep(0.001)
    assert not world.target.works
    world.server.said = CoveyError("it does not answer")
    looks = world.server.looks
    while world.server.looks < looks + 5:
        time.sleep(0.001)
    assert not world.target.works
    world.life.asked.set()
    assert world.life.wait(SECONDS)


def test_drafters_that_come_and_end_while_the_engine_is_built(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    building = Building(monkeypatch)
    world = made("early", "late", "ends", "never")
    world.facts.came("early", facts_of())
    world.facts.came("ends", facts_of())
    world.begin()
    assert building.began.wait(SECONDS)
    world.facts.came("late", facts_of())
    world.facts.ended("ends")
    world.facts.ended("target")
    building.goes_on.set()
    roster = world.life.wait(SECONDS).engine.roster
    known = {name for name in roster.names if roster.facts(name) is not None}
    assert known == {"early", "late"}
    assert {roster.state(name) for name in roster.names} == {State.SERVING}, "who has not said so may be there"
    assert not world.metrics.drafter_failed.called


def test_one_that_may_propose_what_the_target_lacks_is_none_of_its_drafters(made: Made) -> None:
    world = made("one", "smaller", "other")
    world.facts.came("one", facts_of())
    world.facts.came("smaller", facts_of(VOCAB - 1))
    world.facts.came("other", facts_of(VOCAB + 1))
    world.begin()
    assert world.life.wait(SECONDS).engine.roster.names == ("one", "smaller")


@pytest.mark.parametrize("answers", [True, False])
def test_who_was_left_out_of_memory_stays_out_of_it(
    made: Made, answers: bool, caplog: pytest.LogCaptureFixture
) -> None:
    world = made("here", "out", "loading")
    states = {"here": UNLOADED, "out": UNLOADED, "loading": LOADING}
    world.server.said = states if answers else CoveyError("no answer")
    world.facts.came("here", facts_of())
    world.begin()
    roster = world.life.wait(SECONDS).engine.roster
    out = State.UNLOADED if answers else State.SERVING
    assert [roster.state(name) for name in roster.names] == [State.SERVING, out, State.SERVING]
    assert ("cannot list the loaded drafters" in caplog.text) is not answers


def test_a_drafter_that_triton_takes_for_dead_is_ended_unless_it_is_on_its_way(made: Made) -> None:
    world = made("one", "away").begin()
    roster = world.life.wait(SECONDS).engine.roster
    roster.moves("away", State.UNLOADING)
    for name, error in (("one", PortError("late")), ("one", StubDead("not healthy")), ("away", StubDead("dead"))):
        world.start._drafter_failed(roster, name, error)
    assert world.ended == ["one"]
    assert world.metrics.drafter_failed.call_count == 3


class Joining:
    """DrafterFacts, and the engine that may join."""

    def __init__(self, *drafters: str) -> None:
        self.failed: list[str] = []
        self.suspected = 0
        self.facts = DrafterFacts("target", self.failed.append)
        self.roster = Roster(drafters, ManualClock())
        self.engine: Any = SimpleNamespace(roster=self.roster, suspect=self._suspect)

    def _suspect(self) -> None:
        self.suspected += 1

    def join(self) -> set[str]:
        return self.facts.join(self.engine, HashTarget().info())


def test_who_ends_is_told_at_once_when_there_is_an_engine() -> None:
    world = Joining("one", "two")
    world.join()
    for name in ("one", "two"):
        world.facts.came(name, facts_of())
    world.roster.moves("two", State.LOADING)
    for name in ("one", "two", "another model"):
        world.facts.ended(name)
    assert (world.roster.state("one"), world.roster.state("two")) == (State.ENDED, State.LOADING)
    assert world.failed == ["one"]
    world.facts.ended("target")
    assert (world.suspected, world.failed) == (1, ["one"])


@pytest.mark.parametrize("early", [True, False])
def test_a_drafter_of_other_tokens_or_states_is_declined_whenever_it_comes(early: bool) -> None:
    facts = {"one": facts_of(), "larger": facts_of(VOCAB + 1), "head": replace(facts_of(), state_width=8)}
    world = Joining(*facts)
    if not early:
        world.join()
    for name, each in facts.items():
        world.facts.came(name, each)
    if early:
        world.join()
    assert {name for name in facts if world.roster.facts(name) is not None} == {"one"}
    assert world.roster.state("larger") is world.roster.state("head") is State.RESTING


def test_who_is_waited_for_ends_the_wait_and_who_does_not_come_does_not_keep_it() -> None:
    world = Joining("one", "two")
    world.facts.came("one", facts_of())
    assert world.facts.wait(["one", "two"], 0.01) == {"one": facts_of()}
    threading.Timer(0.05, world.facts.came, ("two", facts_of())).start()
    began = time.monotonic()
    assert world.facts.wait(["one", "two"], 10 * SECONDS) == {"one": facts_of(), "two": facts_of()}
    assert time.monotonic() - began < SECONDS


def test_nobody_is_missed_whoever_comes_while_the_engine_joins() -> None:
    """Each drafter's process comes and ends, again and again, while engines join: the roster agrees in the end."""
    names = tuple(f"draft_{each}" for each in range(4))
    for turn in range(20):
        world = Joining(*names)
        go = threading.Barrier(len(names) + 1)

        def move(name: str, last: bool, world: Joining = world, go: threading.Barrier = go) -> None:
            go.wait()
            for _ in range(20):
                world.facts.came(name, facts_of())
                world.facts.ended(name)
            if last:
                world.facts.came(name, facts_of())

        threads = [threading.Thread(target=move, args=(name, at % 2 == turn % 2)) for at, name in enumerate(names)]
        for thread in threads:
            thread.start()
        go.wait()
        world.join()
        for thread in threads:
            thread.join(SECONDS)
        there = {name for name in names if world.roster.facts(name) is not None}
        assert there == {name for at, name in enumerate(names) if at % 2 == turn % 2}
