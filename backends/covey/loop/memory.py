"""Moves drafters out of memory and back, and resizes the KV pool to use their bytes.

    RESIDENT --leave--> UNLOADING --its process has ended--> UNLOADED    then the pool grows
    UNLOADED --come--> the pool contracts, then LOADING --it answers, warm--> RESIDENT

There is one move at a time, and each step is safe by itself. The pool takes a drafter's bytes only after they are free,
and gives them back before the drafter loads. A move that fails is retried after a rest, during which other drafters may
move; until then neither pool nor drafter uses the bytes. The policy (`covey.kv.elastic`) or an administrator decides
when.

The engine's thread calls `tick` between rounds, and regularly while idle. A worker loads and unloads. Each step of a
resize is one call to the target.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from covey.contracts.errors import CoveyError
from covey.contracts.ports import Clock, Residency, Target
from covey.contracts.types import JsonDict, ResizeStatus
from covey.kv.elastic import Budget, Never, Pressure
from covey.loop.memory_totals import MemoryTotals
from covey.loop.pool_size import PoolSize
from covey.process.worker import Worker
from covey.requests.roster import MOVED, Roster, State
from covey_client.backoff import Backoff

log = logging.getLogger("covey.memory")

AWAKE, ASLEEP = 0.02, 0.5  # seconds between looks while no rounds run
FIRST_REST, LONGEST_REST = 0.5, 30.0  # after a step that failed
LATELY = 0.999  # weight of earlier use, per round
STILL = 64  # rounds between looks while no drafter is to move


class Wish(enum.Enum):
    """An administrator's wish about a drafter."""

    AUTO = "auto"  # the policy decides
    PINNED = "pinned"  # in memory
    OUT = "out"  # not in memory


class Act(enum.Enum):
    """A move of a drafter."""

    UNLOAD = "unload"
    LOAD = "load"


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
        self._policy, self._worker, self._drop = policy, worker, drop
        self._calm, self._breathes = calm, breathes
        self.budget, self._device = budget, device
        self._wishes: dict[str, Wish] = dict.fromkeys(roster.names, Wish.AUTO)
        self._used: dict[str, float] = dict.fromkeys(roster.names, 0.0)
        self._backoffs: dict[tuple[str, Act], Backoff] = {}  # of the moves that failed
        self._move: _Move | None = None
        self._calm_since: float | None = None
        self._closed = False
        self._ticks, self._stirs = 0, False
        self._totals = MemoryTotals()
        self._pool = PoolSize(target, clock, self._totals, budget.least)
        self._state = roster.state
        self.totals = self._totals.figures

    # ---- any thread -------------------------------------------------------------------------------------------------

    def wish(self, name: str, wish: Wish) -> None:
        """Set an administrator's wish; raises KeyError for an unknown drafter."""
        if name not in self._wishes:
            raise KeyError(name)
        self._wishes[name], self._stirs = wish, True

    def close(self) -> None:
        """Begin no more moves: an ending server must not unload a drafter that it is loading."""
        self._closed = True

    def report(self) -> JsonDict:
        """Return the state of memory, for people and benchmarks."""
        drafters = {
            name: {
                "state": self._state(name).value,
                "wish": self._wishes[name].value,
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
        return AWAKE if self._move is not None or self._calm_since is not None else ASLEEP

    def tick(self, pressure: Pressure) -> int:
        """Begin or continue a move, or resize the pool. Return the pool's blocks."""
        self._pool.total = pressure.total
        self._ticks += 1
        if self._closed or not (self._breathes or self._stirs or self._ticks % STILL == 1):
            return self._pool.total
        self._stirs = False  # before the wishes are read: new ones may come now
        self._policy.note(pressure)
        for name in self._used:
            self._used[name] = LATELY * self._used[name] + pressure.drafters.get(name, 0)
        self._learn()
        if self._move is None:
            self._move = self._next(pressure)
        if self._move is not None:
            self._go_on(self._move)
        elif self._goal() != self._pool.total:
            self._pool.step(self._goal())
        wished = any(wish is not Wish.AUTO for wish in self._wishes.values())
        self._stirs |= self._move is not None or wished or any(self._state(name) in MOVED for name in self._wishes)
        return self._pool.total

    def _learn(self) -> None:
        for name in self._roster.names:
            facts = self._roster.facts(name)
            if facts is None or (self._move is not None and self._move.name == name):
                continue
            self.budget.learn(name, facts.resident_bytes if facts.device in ("", self._device) else 0)

    # ---- what to do next --------------------------------------------------------------------------------------------

    def _next(self, pressure: Pressure) -> _Move | None:
        """Return the move to begin now, if any: an administrator's wish first, then the policy's choice."""
        found = self._wanted() or self._leaves() or self._comes(pressure)
        return None if found is None else _Move(*found, started=self._clock.now())

    def _wanted(self) -> tuple[str, Act] | None:
        """Return the drafter to move and how. Departures come first, as they make room; failed moves are retried."""
        for which in (Wish.OUT, Wish.PINNED, Wish.AUTO):
            for name, wish in self._wishes.items():
                act = _due(wish, self._state(name)) if wish is which else None
                if act is not None and self._may(name, act):
                    return name, act
        return None

    def _leaves(self) -> tuple[str, Act] | None:
        """Return the move that gives the pool the bytes of the least used drafter, if the policy wants them."""
        resident = self._resident()
        blocks = self.budget.blocks(resident)
        free = [name for name in resident if self._wishes[name] is Wish.AUTO and self._roster.serves(name)]
        for name in sorted(free, key=self._used.__getitem__):
            after = [each for each in resident if each != name]
            gain = self.budget.blocks(after) - blocks
            more = gain > 0 and blocks <= self._pool.total  # else the pool has not yet taken the last gift
            if self._may(name, Act.UNLOAD) and more:
                return (name, Act.UNLOAD) if self._policy.expands(gain) else None
        return None

    def _comes(self, pressure: Pressure) -> tuple[str, Act] | None:
        """Return the move that brings a drafter back, after there has been room for `calm` seconds."""
        away = [name for name, wish in self._wishes.items() if wish is Wish.AUTO]
        back = [name for name in away if self._state(name) is State.UNLOADED and self._may(name, Act.LOAD)]
        if not back:
            self._calm_since = None
            return None
        name = max(back, key=lambda each: (self._used[each], -self.budget.held.get(each, 0)))
        after, now = [*self._resident(), name], self._clock.now()
        needed = max(0, self._pool.total - self.budget.blocks(after))
        if not self._policy.contracts(pressure, needed):
            self._calm_since = None
            return None
        if self._calm_since is None:
            self._calm_since = now
        return (name, Act.LOAD) if now - self._calm_since >= self._calm else None

    def _may(self, name: str, act: Act) -> bool:
        """Return whether this move of the drafter is possible now. It is not while it rests after a failure."""
        failed = self._backoffs.get((name, act))
        return self._state(name) is not State.ENDED and (failed is None or not failed.resting)

    # ---- doing it ---------------------------------------------------------------------------------------------------

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
        goal = self.budget.blocks([*self._resident(), move.name])
        return self._pool.total <= goal or self._pool.step(goal) is ResizeStatus.OK

    def _begin(self, move: _Move) -> None:
        name, act, started = move.name, move.act, self._clock.now()
        self._roster.moves(name, State.LOADING if act is Act.LOAD else State.UNLOADING)
        self._drop(name)
        call: Callable[[str], Any] = self._residency.load if act is Act.LOAD else self._residency.unload
        self._calm_since = None
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
        for each in Act:
            self._backoffs.pop((name, each), None)
        self._totals.count(act.value, "done", now - move.started)
        if act is Act.UNLOAD:
            held: int = done.result()
            if self.budget.held.get(name) and held:  # it has grown since it loaded
                self.budget.held[name] = held
            self._roster.moves(name, State.UNLOADED)
            self._policy.gave()
        else:
            self._roster.came(name, done.result())
        log.info("%s of %s took %.3g s", act.value, name, now - move.started)

    def _failed(self, move: _Move, error: BaseException) -> None:
        name, act = move.name, move.act
        backoff = self._backoffs.setdefault((name, act), Backoff(FIRST_REST, LONGEST_REST, self._clock.now))
        rest = backoff.failed()
        self._totals.count(act.value, "failed")
        if not isinstance(error, CoveyError):
            log.error("%s of %s raised an unexpected exception", act.value, name, exc_info=error)
        log.warning("%s of %s failed, next try in %g s: %s", act.value, name, rest, error)

    def _goal(self) -> int:
        """Return how many blocks the pool should have while no drafter moves."""
        resident = self._resident()
        unknown = any(name not in self.budget.held for name in resident)
        if not self._breathes or unknown or self._pool.rests:
            return self._pool.total
        return self.budget.blocks(resident)

    def _resident(self) -> list[str]:
        """Return the drafters whose bytes the pool may not use: one that leaves counts until it is gone, one that loads
        from its start on."""
        return [name for name in self._roster.names if self._state(name) is not State.UNLOADED]


def _due(wish: Wish, state: State) -> Act | None:
    """Return the move that a wish or an earlier failure makes due, regardless of the policy."""
    if wish is Wish.OUT:
        return None if state is State.UNLOADED else Act.UNLOAD
    if wish is Wish.PINNED:
        return Act.LOAD if state in MOVED else None
    return {State.UNLOADING: Act.UNLOAD, State.LOADING: Act.LOAD}.get(state)  # a move that failed
