"""Drafters come and end while an engine is being built, and after it."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from covey.contracts.types import DrafterInfo
from covey.requests.roster import Roster, State
from covey.serving.drafter_facts import DrafterFacts
from tests.fakes import VOCAB, HashTarget, ManualClock

SECONDS = 10.0
INFO = HashTarget().info()


def facts_of(vocabulary: int = VOCAB) -> DrafterInfo:
    return DrafterInfo("hash", vocabulary, 512, 1, 0)


class World:
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
        return self.facts.join(self.engine, INFO)


def test_who_ends_is_told_at_once_when_there_is_an_engine() -> None:
    world = World("one", "two")
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
    world = World(*facts)
    if not early:
        world.join()
    for name, each in facts.items():
        world.facts.came(name, each)
    if early:
        world.join()
    assert {name for name in facts if world.roster.facts(name) is not None} == {"one"}
    assert world.roster.state("larger") is world.roster.state("head") is State.RESTING


def test_who_is_waited_for_ends_the_wait_and_who_does_not_come_does_not_keep_it() -> None:
    world = World("one", "two")
    world.facts.came("one", facts_of())
    assert world.facts.wait(["one", "two"], 0.01) == {"one": facts_of()}
    waiting = threading.Thread(target=world.facts.wait, args=(["one", "two"], 10 * SECONDS), daemon=True)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    world.facts.came("two", facts_of())
    waiting.join(SECONDS)
    assert not waiting.is_alive()
    assert world.facts.wait(["one", "two"], 0.0) == {"one": facts_of(), "two": facts_of()}


def test_nobody_is_missed_whoever_comes_while_the_engine_joins() -> None:
    """Each drafter's process comes and ends, again and again, while engines join: the roster agrees in the end."""
    names = tuple(f"draft_{each}" for each in range(4))
    for turn in range(20):
        world = World(*names)
        go = threading.Barrier(len(names) + 1)

        def move(name: str, last: bool, world: World = world, go: threading.Barrier = go) -> None:
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
