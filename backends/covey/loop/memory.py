"""Moves drafters out of memory and back, and resizes the KV pool to use their bytes.

    SERVING --leave--> UNLOADING --its process has ended--> UNLOADED    then the pool grows
    UNLOADED --come--> the pool contracts, then LOADING --it answers, warm--> SERVING

There is one move at a time, and each step is safe by itself. The pool takes a drafter's bytes only after they are free,
and gives them back before the drafter loads. A move that fails is retried after a rest, during which other drafters may
move; until then neither pool nor drafter uses the bytes. The policy (`covey.kv.elastic`) or an administrator decides
when.

The engine's thread calls `tick` between rounds, and regularly while idle. A worker loads and unloads. Each step of a
resize is one call to the target.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from covey.contracts.errors import CoveyError, PortError
from covey.contracts.ports import Clock, Residency, Target
from covey.contracts.types import JsonDict, ResizeStatus
from covey.kv.elastic import Budget, Never, Pressure
from covey.loop.moves import Act, Moves, Wish
from covey.process.worker import Worker
from covey.requests.roster import MOVED, Roster, State
from covey_client.backoff import Backoff

PAUSES = 1024  # kept per operation
log = logging.getLogger("covey.memory")
POLL = 0.005  # seconds between steps of a resize
FIRST_REST, LONGEST_REST = 0.5, 30.0  # after a refused step
AWAKE, ASLEEP = 0.02, 0.5  # seconds between looks while no rounds run
STILL = 64  # rounds between looks while no drafter is to move


class MemoryTotals:
    """Written by one thread, read by any."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = defaultdict(int)
        self._seconds: dict[str, float] = defaultdict(float)
        self._pauses: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=PAUSES))

    def count(self, operation: str, outcome: str, seconds: float = 0.0) -> None:
        """Count an operation that ended after `seconds`."""
        self._counts[operation, outcome] += 1
        self._seconds[operation] += seconds

    def paused(self, operation: str, seconds: float) -> None:
        """Note that a round waited `seconds` for a step of an operation."""
        self._pauses[operation].append(seconds)
        self._seconds[operation] += seconds

    def operations(self) -> dict[str, int]:
        return {f"{operation} {outcome}": count for (operation, outcome), count in self._counts.copy().items()}

    def pauses(self) -> dict[str, list[float]]:
        return {operation: list(pauses) for operation, pauses in self._pauses.copy().items()}

    def figures(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Yield metric, labels, value."""
        for (operation, outcome), count in self._counts.copy().items():
            yield "covey_memory_operations_total", {"operation": operation, "outcome": outcome}, count
        for operation, seconds in self._seconds.copy().items():
            yield "covey_memory_seconds_total", {"operation": operation}, seconds


class PoolSize:
    """Owns the size of the pool. Each step is one call to the target. A refused step is retried after a rest."""

    def __init__(self, target: Target, clock: Clock, totals: MemoryTotals, total: int) -> None:
        self.total = total  # as the target last reported it
        self._target, self._clock, self._totals = target, clock, totals
        self._polled = 0.0
        self._backoff = Backoff(FIRST_REST, LONGEST_REST, clock.now)

    @property
    def rests(self) -> bool:
        """Return whether the pool rests after a refused step. Does not mutate."""
        return self._backoff.resting

    def step(self, goal: int) -> ResizeStatus:
        """Take the next step towards `goal` blocks, if one is due."""
        started = self._clock.now()
        if started < self._polled + POLL or self.rests:
            return ResizeStatus.LATER
        operation = "expand" if goal > self.total else "contract"
        try:
            answer = self._target.resize(goal)
        except PortError as error:
            log.warning("cannot resize the KV pool: %s", error)
            self._refused(operation)
            return ResizeStatus.LATER
        ended = self._clock.now()
        self._polled, self.total = ended, answer.total_blocks
        self._totals.paused(operation, ended - started)
        if answer.status is ResizeStatus.OK:
            self._totals.count(operation, "done")
            self._backoff.succeeded()
        elif answer.status is not ResizeStatus.LATER:
            log.info("the KV pool stays at %d blocks, not %d: %s", answer.total_blocks, goal, answer.status.name)
            self._refused(operation)
        return answer.status

    def _refused(self, operation: str) -> None:
        self._totals.count(operation, "refused")
        self._backoff.failed()


@dataclass(slots=True)
class _Move:
    """A drafter's move: under way, or waiting for the pool to make room."""

    name: str
    act: Act
    started: float
    future: Future[Any] | None = None


class Memory:
    """Owns the drafters' residency and the size of the pool. `wish` may be called from any thread."""

    def __init__(
        self,
        target: Target,
        residency: Residency,
        roster: Roster,
        clock: Clock,
        policy: Never,
        budget: Budget,
        *,
        worker: Worker,
        drop: Callable[[str], None],
        device: str = "",
        calm: float = 5.0,
        breathes: bool = True,
    ) -> None:
        """`drop` is called with a drafter that gets no more calls. The pool gains nothing from drafters in the memory
        of another `device`. A drafter comes back after the policy has allowed it for `calm` seconds. Without `breathes`
        the pool keeps its size. A drafter whose process has ended is left to its reviver."""
        self._residency, self._roster, self._clock = residency, roster, clock
        self._worker, self._drop, self._breathes = worker, drop, breathes
        self.budget, self._device = budget, device
        self._moves = Moves(roster, clock, policy, budget, calm)
        self._move: _Move | None = None  # the one under way
        self._closed = False
        self._ticks, self._stirs = 0, False
        self._totals = MemoryTotals()
        self._pool = PoolSize(target, clock, self._totals, budget.least)
        self._state = roster.state
        self.totals = self._totals.figures

    # ---- any thread -------------------------------------------------------------------------------------------------

    def wish(self, name: str, wish: Wish) -> None:
        """Set an administrator's wish; raises KeyError for an unknown drafter."""
        if name not in self._moves.wishes:
            raise KeyError(name)
        self._moves.wishes[name], self._stirs = wish, True

    def close(self) -> None:
        """Begin no more moves: an ending server must not unload a drafter that it is loading."""
        self._closed = True

    def report(self) -> JsonDict:
        """Return the state of memory, for people and benchmarks."""
        drafters = {
            name: {
                "state": self._state(name).value,
                "wish": self._moves.wishes[name].value,
                "bytes": self.budget.held.get(name, 0),
            }
            for name in self._roster.names
        }
        return {
            "drafters": drafters,
            "budget_bytes": self.budget.whole,
            "pool_bytes": self._pool.total * self.budget.block_bytes,
            "blocks_gained": self._pool.total - self.budget.least,
            "operations": self._totals.operations(),
            "pauses": self._totals.pauses(),
        }

    def gauges(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Yield metric, labels, value."""
        away = {name for name in self._roster.names if self._state(name) in MOVED}
        drafters = sum(self.budget.held.get(name, 0) for name in self._roster.names if name not in away)
        for part, size in (
            ("budget", self.budget.whole),
            ("pool", self._pool.total * self.budget.block_bytes),
            ("drafters", drafters),
        ):
            yield "covey_memory_bytes", {"part": part}, size
        yield "covey_kv_blocks_gained", {}, self._pool.total - self.budget.least
        for name in self._roster.names:
            yield "covey_drafter_resident", {"drafter": name}, name not in away

    # ---- the engine's thread ----------------------------------------------------------------------------------------

    @property
    def pause(self) -> float:
        """Return the seconds until the next look while nothing runs."""
        return AWAKE if self._move is not None or self._moves.waiting else ASLEEP

    def tick(self, pressure: Pressure) -> int:
        """Begin or continue a move, or resize the pool. Return the pool's blocks."""
        self._pool.total = pressure.total
        self._ticks += 1
        if self._closed or not (self._breathes or self._stirs or self._ticks % STILL == 1):
            return self._pool.total
        self._stirs = False  # before the wishes are read: new ones may come now
        self._moves.note(pressure)
        self._learn()
        if self._move is None:
            found = self._moves.next(pressure, self._pool.total)
            self._move = None if found is None else _Move(*found, started=self._clock.now())
        if self._move is not None:
            self._go_on(self._move)
        elif self._goal() != self._pool.total:
            self._pool.step(self._goal())
        self._stirs |= self._move is not None or self._moves.due
        return self._pool.total

    def _learn(self) -> None:
        for name in self._roster.names:
            facts = self._roster.facts(name)
            if facts is None or (self._move is not None and self._move.name == name):
                continue
            self.budget.learn(name, facts.resident_bytes if facts.device in ("", self._device) else 0)

    def _go_on(self, move: _Move) -> None:
        if move.future is not None:
            if move.future.done():
                self._end(move, move.future)
        elif self._made_room(move):
            self._begin(move)
        else:
            self._move = None  # the next tick decides anew

    def _made_room(self, move: _Move) -> bool:
        """Return whether the pool has given back the drafter's bytes. May shrink the pool by one step."""
        if not self._breathes or move.act is Act.UNLOAD or self._state(move.name) is State.LOADING:
            return True
        goal = self.budget.blocks([*self._moves.resident(), move.name])
        return self._pool.total <= goal or self._pool.step(goal) is ResizeStatus.OK

    def _begin(self, move: _Move) -> None:
        name, act, started = move.name, move.act, self._clock.now()
        self._roster.moves(name, State.LOADING if act is Act.LOAD else State.UNLOADING)
        self._drop(name)
        call: Callable[[str], Any] = self._residency.load if act is Act.LOAD else self._residency.unload
        self._moves.began()
        move.future = self._worker.submit(call, name)
        operation = "reload_dispatch" if act is Act.LOAD else "unload_dispatch"
        self._totals.paused(operation, self._clock.now() - started)

    def _end(self, move: _Move, done: Future[Any]) -> None:
        name, act, now = move.name, move.act, self._clock.now()
        self._move = None
        error = done.exception()
        if error is not None:
            self._failed(move, error)
            return
        self._moves.done(name, act)
        self._totals.count(act.value, "done", now - move.started)
        if act is Act.UNLOAD:
            held: int = done.result()
            if self.budget.held.get(name) and held:  # it has grown since it loaded
                self.budget.held[name] = held
            self._roster.moves(name, State.UNLOADED)
        else:
            self._roster.came(name, done.result())
        log.info("%s of %s took %.3g s", act.value, name, now - move.started)

    def _failed(self, move: _Move, error: BaseException) -> None:
        name, act = move.name, move.act
        rest = self._moves.failed(name, act)
        self._totals.count(act.value, "failed")
        if not isinstance(error, CoveyError):
            log.error("%s of %s raised an unexpected exception", act.value, name, exc_info=error)
        log.warning("%s of %s failed, next try in %g s: %s", act.value, name, rest, error)

    def _goal(self) -> int:
        """Return how many blocks the pool should have while no drafter moves."""
        resident = self._moves.resident()
        unknown = any(name not in self.budget.held for name in resident)
        if not self._breathes or unknown or self._pool.rests:
            return self._pool.total
        return self.budget.blocks(resident)
