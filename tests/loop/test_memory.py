"""Drafters leave and come back while requests run: no byte is promised twice, no text changes, nothing is left over."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from covey.contracts.errors import PortError
from covey.contracts.types import DrafterInfo, Resized, ResizeStatus, TargetInfo, TargetReply, TargetWork
from covey.kv.elastic import Budget, Never, Pressure, Thresholds
from covey.loop.configuration import EngineHooks
from covey.loop.memory import Memory
from covey.loop.moves import Wish
from covey.process.guard import Guard
from covey.requests.roster import Roster, State
from tests.engines import engine_to
from tests.fakes import VOCAB, Collector, HashTarget, ManualClock, continuation, request
from tests.loop.hash_drafters import HashDrafter
from tests.static_planner import StaticPlanner

BLOCK = 10  # bytes
LEAST = 20
SIZES = {"one": 95, "two": 40, "three": 200, "none": 0}


class Pool(HashTarget):
    """A pool that breathes by steps, each of which takes time; passes take time too."""

    def __init__(self, clock: ManualClock, seconds: float = 0.01) -> None:
        super().__init__(blocks=LEAST)
        self.clock, self.seconds = clock, seconds
        self.trouble: list[PortError] = []
        self.stuck = False

    def info(self) -> TargetInfo:
        return replace(super().info(), block_bytes=BLOCK, least_blocks=LEAST)

    def step(self, work: TargetWork) -> TargetReply:
        self.clock.sleep(self.seconds)
        return super().step(work)

    def restart(self) -> None:
        super().restart()
        self.blocks = LEAST

    def resize(self, blocks: int) -> Resized:
        if self.trouble:
            raise self.trouble.pop()
        assert blocks >= LEAST
        if self.used > blocks or self.stuck:
            return Resized(ResizeStatus.IN_USE, self.blocks)
        step = min(5, abs(blocks - self.blocks))
        self.blocks += step if blocks > self.blocks else -step
        return Resized(ResizeStatus.OK if self.blocks == blocks else ResizeStatus.LATER, self.blocks)


class House:
    """Implements `covey.contracts.ports.Residency`, and watches that all of it fits."""

    def __init__(self, pool: Pool, names: Iterable[str]) -> None:
        self.pool, self.resident = pool, set(names)
        self.budget = LEAST * BLOCK + sum(SIZES[name] for name in names)
        self.trouble: list[tuple[str, bool]] = []  # action, and whether it is done all the same
        self.moves: list[tuple[str, str]] = []

    def unload(self, name: str) -> int:
        known = name in self.resident
        self.moves.append(("unload", name))
        if self._fails("unload", lambda: self.resident.discard(name)):
            raise PortError("the server refused")
        self.resident.discard(name)
        return SIZES[name] if known else 0

    def load(self, name: str) -> DrafterInfo:
        self.moves.append(("load", name))
        if self._fails("load", lambda: None):
            raise PortError("the drafter died")
        self.resident.add(name)
        self.check()
        return facts(name)

    def check(self) -> None:
        held = sum(SIZES[name] for name in self.resident)
        assert self.pool.blocks * BLOCK + held <= self.budget, "a byte was promised twice"

    def _fails(self, action: str, half: Callable[[], None]) -> bool:
        if self.trouble and self.trouble[-1][0] == action:
            if self.trouble.pop()[1]:
                half()
            return True
        return False


def facts(name: str) -> DrafterInfo:
    return DrafterInfo(name, VOCAB, 512, 7, SIZES[name])


class Slow:
    """Implements `Worker`: what is submitted is done some time later."""

    def __init__(self, clock: ManualClock, seconds: float) -> None:
        self.clock, self.seconds = clock, seconds

    def submit(self, call: Callable[[Any], Any], argument: Any) -> Future[Any]:
        return _Later(self.clock, self.clock.now() + self.seconds, lambda: call(argument))

    def close(self) -> None:
        """Nothing runs."""


class _Later(Future[Any]):
    def __init__(self, clock: ManualClock, due: float, call: Callable[[], Any]) -> None:
        super().__init__()
        self.clock, self.due, self.call = clock, due, call

    def done(self) -> bool:
        if not super().done() and self.clock.now() >= self.due:
            try:
                self.set_result(self.call())
            except PortError as error:
                self.set_exception(error)
        return super().done()


class Server:
    def __init__(
        self,
        policy: Never,
        names: tuple[str, ...] = ("one", "two"),
        *,
        depth: int = 0,
        guard: Guard | None = None,
    ) -> None:
        self.clock = ManualClock()
        self.pool = Pool(self.clock)
        self.house = House(self.pool, names)
        self.sink = Collector()
        self.drafters = {name: HashDrafter(0.7) for name in names}
        self.planner = StaticPlanner(depth, 1)

        def made(roster: Roster, drop: Callable[[str], None]) -> Memory:
            def dropped(name: str) -> None:
                drop(name)
                self.drafters[name].tokens.clear()  # the next incarnation knows nothing
                self.drafters[name].epoch += 1

            budget = Budget(LEAST, BLOCK)
            worker = Slow(self.clock, 0.3)
            ports = self.pool, self.house, roster, self.clock
            return Memory(*ports, policy, budget, worker=worker, drop=dropped, calm=0.2)

        hooks = EngineHooks(recover=lambda _error: self.pool.restart(), memory=made, guard=guard or Guard(strict=True))
        limits = {"max_running": 32, "max_waiting": 999, "token_budget": 99}
        ports = self.sink, self.pool, self.planner, self.drafters
        self.engine = engine_to(*ports, clock=self.clock, hooks=hooks, **limits)
        for name in names:
            self.engine.roster.came(name, facts(name))
        assert self.engine.memory is not None
        self.memory = self.engine.memory
        self.expected: dict[int, list[int]] = {}

    def submit(self, count: int, tokens: int = 20, **settings: object) -> None:
        for _ in range(count):
            key = len(self.expected) + 1
            prompt = [key % VOCAB, 5, key * 7 % VOCAB, 9]
            self.expected[key] = continuation(prompt, tokens)
            self.engine.submit(request(key, prompt, tokens, **settings))

    def burst(self, requests: int = 40) -> None:
        """Submit more requests than the pool has room for."""
        self.submit(requests, tokens=60)
        self.run(2)

    def run(self, seconds: float) -> None:
        until = self.clock.now() + seconds
        while self.clock.now() < until:
            if not self.engine.round():
                self.clock.sleep(self.memory.pause)
            self.house.check()

    def states(self) -> dict[str, State]:
        return {name: self.engine.roster.state(name) for name in self.drafters}

    def finish(self) -> None:
        self.run(60)
        assert self.sink.tokens == self.expected
        assert self.pool.used == 0
        assert set(self.states().values()) == {State.SERVING}
        assert self.house.resident == set(self.drafters)
        assert self.pool.blocks == LEAST


def test_a_burst_has_drafters_leave_and_calm_brings_them_back() -> None:
    server = Server(Thresholds(0.1, 3))
    server.run(2)
    assert server.house.moves == []
    server.burst()
    assert set(server.states().values()) == {State.UNLOADED}
    assert server.engine.total_blocks == server.pool.blocks == LEAST + (SIZES["one"] + SIZES["two"]) // BLOCK
    alone = Server(Never())
    alone.submit(40, tokens=60)
    alone.finish()
    server.finish()
    assert len(server.pool.works) < 0.8 * len(alone.pool.works), "more requests ran at once"
    assert alone.house.moves == []
    assert sorted(server.house.moves) == [("load", "one"), ("load", "two"), ("unload", "one"), ("unload", "two")]


def test_who_drafts_least_leaves_first_and_comes_back_last() -> None:
    server = Server(Thresholds(0.1, 3), ("one", "two", "three"), depth=3)
    for count, name in ((1, "one"), (3, "two"), (2, "three")):
        server.submit(count, 30, drafter=name)
    server.run(0.1)
    server.planner.depth = 0
    server.submit(60, tokens=60)
    server.finish()
    assert [name for action, name in server.house.moves if action == "unload"] == ["one", "three", "two"]
    assert [name for action, name in server.house.moves if action == "load"] == ["two", "three", "one"]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 3))])
def test_a_hundred_transitions_under_load_with_all_that_can_go_wrong(seed: int) -> None:
    rng = random.Random(seed)
    server = Server(Thresholds(0.1, 2), ("one", "two", "three", "none"), depth=2)
    while len(server.house.moves) < 100:
        server.planner.depth = rng.choice([0, 0, 3])
        if rng.random() < 0.5:
            server.submit(rng.randrange(30), tokens=rng.randrange(1, 70))
        fault = rng.randrange(6)
        if fault == 0:
            server.house.trouble.append((rng.choice(["unload", "load"]), rng.random() < 0.5))
        elif fault == 1:
            server.pool.trouble.append(PortError("lost"))
        elif fault == 2 and not server.pool.fail_with:  # three at once and requests fail
            server.pool.fail_with.append(PortError("the target died"))
        elif fault == 3 and server.engine.scheduler.running:
            key = rng.choice(list(server.engine.scheduler.running))
            server.engine.cancel(key)
            server.expected[key] = []
        server.run(rng.random() * 2)
    server.house.trouble.clear()
    server.pool.trouble.clear()
    server.run(60)
    for key, expected in server.expected.items():
        if expected:
            assert server.sink.tokens[key] == expected
    server.sink.tokens = server.expected
    server.finish()


def test_an_administrator_goes_before_the_policy() -> None:
    server = Server(Thresholds(0.1, 3))
    server.memory.wish("one", Wish.PINNED)
    server.burst()
    assert server.states() == {"one": State.SERVING, "two": State.UNLOADED}
    server.memory.wish("two", Wish.OUT)
    server.run(40)
    assert server.states()["two"] is State.UNLOADED, "calm does not bring it back"
    server.memory.wish("one", Wish.OUT)
    server.run(2)
    assert server.states() == {"one": State.UNLOADED, "two": State.UNLOADED}
    server.memory.wish("one", Wish.PINNED)
    server.memory.wish("two", Wish.AUTO)
    server.finish()
    report = server.memory.report()
    assert report["operations"]["unload done"] == report["operations"]["load done"] >= 2
    assert report["drafters"]["one"] == {"state": "serving", "wish": "pinned", "bytes": 95}
    assert report["blocks_gained"] == 0
    with pytest.raises(KeyError):
        server.memory.wish("four", Wish.OUT)


def lasting(server: Server, action: str, name: str) -> None:
    """From now on an action on a drafter fails."""
    act = getattr(server.house, action)

    def failing(which: str) -> Any:
        if which == name:
            server.house.moves.append((action, name))
            raise PortError("it never does")
        return act(which)

    setattr(server.house, action, failing)


def test_a_drafter_that_does_not_come_keeps_nobody_else_away() -> None:
    server = Server(Thresholds(0.1, 3), ("two", "one"))
    server.burst()
    server.memory.wish("one", Wish.PINNED)
    lasting(server, "load", "one")
    server.run(60)
    assert server.states() == {"one": State.LOADING, "two": State.SERVING}
    assert 4 < server.house.moves.count(("load", "one")) < 12, "tried again, less and less often"
    server.memory.wish("one", Wish.OUT)
    server.run(2)
    assert server.states()["one"] is State.UNLOADED, "and an administrator can have it stay away"
    assert server.house.moves[-1] == ("unload", "one")


@pytest.mark.parametrize("wish", [Wish.AUTO, Wish.OUT])
def test_a_drafter_that_somebody_else_brings_back_is_left_alone(wish: Wish) -> None:
    server = Server(Thresholds(0.1, 3))
    server.run(0.1)
    facts = server.engine.roster.facts("one")
    assert facts is not None
    server.engine.roster.gone("one")
    server.memory.wish("one", wish)
    server.burst(80)
    assert server.states() == {"one": State.ENDED, "two": State.UNLOADED}
    server.engine.roster.came("one", facts)
    server.run(2)
    assert server.states()["one"] is State.UNLOADED


def test_nothing_begins_once_it_is_closed() -> None:
    server = Server(Thresholds(0.1, 3))
    server.memory.close()
    server.submit(40, tokens=60)
    server.finish()
    assert server.house.moves == []


def pressure(**changes: Any) -> Pressure:
    return replace(Pressure(5, 100, waiting=30, running=10, most_running=64), **changes)


@pytest.mark.parametrize(
    ("change", "short"),
    [
        ({}, True),
        ({"drafters": {"one": 1}}, False),
        ({"waiting": 0}, True),  # fewer blocks are free than a tenth
        ({"waiting": 0, "free": 10}, False),
        ({"waiting": 0, "running": 0}, False),  # what blocks keep on an idle server is cached text
        ({"free": 10}, True),  # and requests wait for blocks all the same
        ({"free": 10, "running": 64}, False),  # they wait for room in the batch
    ],
)
def test_memory_is_short_by_nightjars_rule(change: dict[str, Any], short: bool) -> None:
    policy = Thresholds(0.1, 2)
    for _ in range(2):
        policy.note(pressure(**change))
    assert policy.expands(10) is short
