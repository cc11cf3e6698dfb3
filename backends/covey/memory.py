"""Who is in memory: drafters leave and come back, and the KV pool takes and gives their bytes.

    RESIDENT --leave--> UNLOADING --its process has ended--> UNLOADED    then the pool grows
    UNLOADED --come--> the pool contracts, then LOADING --it answers, warm--> RESIDENT

One move at a time, each step safe by itself: a drafter's bytes are the pool's only when its process is gone, and the
pool has given them back before the drafter is loaded. Whatever fails is tried again, after a rest; until then the bytes
in question are nobody's. When is `covey.kv.elastic`'s to say, or an administrator's.

Called by the engine's thread between rounds, and now and then while there are none. Loading and unloading are done by a
worker; a resize of the pool takes a call to the target for each step that it makes.
"""

from __future__ import annotations

import enum
import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from covey.errors import CoveyError, PortError
from covey.kv.elastic import Budget, Policy, Pressure
from covey.ports import Clock, Residency, Target
from covey.roster import Roster, State
from covey.types import DrafterInfo, JsonDict, ResizeStatus
from covey.worker import Worker

log = logging.getLogger("covey.memory")

AWAKE, ASLEEP = 0.02, 0.5  # seconds between looks while there are no rounds
POLL = 0.005  # ... at memory on its way
FIRST_REST, LONGEST_REST = 0.5, 30.0  # after a step that failed
LATELY = 0.999  # of what was used before each round counts on
PAUSES = 1024  # that are remembered
STILL = 64  # rounds between looks where nobody is to move
AWAY = (State.UNLOADING, State.UNLOADED, State.LOADING)


class Wish(enum.Enum):
    """What an administrator wants of a drafter."""

    AUTO = "auto"  # the policy decides
    PINNED = "pinned"  # in memory
    OUT = "out"  # not in memory


@dataclass(slots=True)
class _Move:
    """A drafter on its way, or one that waits for the pool to make room."""

    name: str
    comes: bool
    wanted: bool  # by an administrator: it is not given up
    started: float
    future: Future[Any] | None = None
    not_before: float = 0.0
    rest: float = FIRST_REST


class Memory:
    """Owns the drafters' residency and the size of the pool. `wish` may be called from any thread."""

    def __init__(
        self,
        target: Target,
        residency: Residency,
        roster: Roster,
        clock: Clock,
        policy: Policy,
        budget: Budget,
        *,
        worker: Worker,
        drop: Callable[[str], None],
        device: str = "",
        calm: float = 5.0,
        breathes: bool = True,
    ) -> None:
        """`drop` is told of a drafter that is asked nothing more. Of drafters that hold another `device`'s memory the
        pool gains nothing. Drafters come back when the policy has said so for
        `calm` seconds. Unless it `breathes` the pool keeps its size."""
        self._target, self._residency, self._roster, self._clock = target, residency, roster, clock
        self._policy, self._worker, self._drop = policy, worker, drop
        self._calm, self._breathes = calm, breathes
        self.budget, self._device = budget, device
        self._wishes: dict[str, Wish] = dict.fromkeys(roster.names, Wish.AUTO)
        self._used: dict[str, float] = dict.fromkeys(roster.names, 0.0)
        self._move: _Move | None = None
        self._calm_since: float | None = None
        self._polled = 0.0
        self._closed = False
        self._ticks, self._stirs = 0, False
        self._resize_rest, self._resize_after = FIRST_REST, 0.0
        self._total = budget.least
        self._counts: dict[tuple[str, str], int] = defaultdict(int)
        self._seconds: dict[str, float] = defaultdict(float)
        self._pauses: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=PAUSES))

    # ---- any thread -------------------------------------------------------------------------------------------------

    def wish(self, name: str, wish: Wish) -> None:
        """Raises KeyError for a drafter that there is not."""
        if name not in self._wishes:
            raise KeyError(name)
        self._wishes[name], self._stirs = wish, True

    def close(self) -> None:
        """Nothing begins any more: a server that ends must not unload what it loads."""
        self._closed = True

    def report(self) -> JsonDict:
        """For people and benches."""
        drafters = {
            name: {
                "state": self._roster.state(name).value,
                "wish": self._wishes[name].value,
                "bytes": self.budget.held.get(name, 0),
            }
            for name in self._roster.names
        }
        return {
            "drafters": drafters,
            "budget_bytes": self.budget.whole,
            "pool_bytes": self._total * self.budget.block_bytes,
            "blocks_gained": self._total - self.budget.least,
            "operations": {
                f"{operation} {outcome}": count for (operation, outcome), count in self._counts.copy().items()
            },
            "pauses": {operation: list(pauses) for operation, pauses in self._pauses.copy().items()},
        }

    def totals(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Metric, labels, value."""
        for (operation, outcome), count in self._counts.copy().items():
            yield "covey_memory_operations_total", {"operation": operation, "outcome": outcome}, count
        for operation, seconds in self._seconds.copy().items():
            yield "covey_memory_seconds_total", {"operation": operation}, seconds

    def gauges(self) -> Iterator[tuple[str, dict[str, str], float]]:
        away = {name for name in self._roster.names if self._roster.state(name) in AWAY}
        drafters = sum(held for name, held in self.budget.held.copy().items() if name not in away)
        for part, size in (
            ("budget", self.budget.whole),
            ("pool", self._total * self.budget.block_bytes),
            ("drafters", drafters),
        ):
            yield "covey_memory_bytes", {"part": part}, size
        yield "covey_kv_blocks_gained", {}, self._total - self.budget.least
        for name in self._roster.names:
            yield "covey_drafter_resident", {"drafter": name}, name not in away

    # ---- the engine's thread ----------------------------------------------------------------------------------------

    @property
    def pause(self) -> float:
        """How long it may be left alone while nothing runs."""
        return AWAKE if self._move is not None or self._calm_since is not None else ASLEEP

    def tick(self, pressure: Pressure) -> int:
        """Look after it all; returns how many blocks the pool has."""
        self._total = pressure.total
        self._ticks += 1
        if self._closed or not (self._breathes or self._stirs or self._ticks % STILL == 1):
            return self._total
        self._stirs = False  # before the wishes are looked at, which may come now
        self._policy.note(pressure)
        for name in self._used:
            self._used[name] = LATELY * self._used[name] + pressure.drafters.get(name, 0)
        self._learn()
        if self._move is None:
            self._move = self._next(pressure)
        if self._move is not None:
            self._go_on(self._move)
        elif self._goal() != self._total:
            self._resize(self._goal())
        if self._move is not None or self._away() or any(wish is not Wish.AUTO for wish in self._wishes.values()):
            self._stirs = True
        return self._total

    def _learn(self) -> None:
        for name in self._roster.names:
            facts = self._roster.facts(name)
            if facts is not None:
                self.budget.held[name] = facts.resident_bytes if facts.device in ("", self._device) else 0

    def _next(self, pressure: Pressure) -> _Move | None:
        """The move to begin now, if any: what an administrator wants, then what must be, then what is better."""
        now, resident, away = self._clock.now(), self._resident(), self._away()
        for name, wish in self._wishes.items():
            if wish is Wish.OUT and name in resident:
                return _Move(name, comes=False, wanted=True, started=now)
            if wish is Wish.PINNED and name in away:
                return _Move(name, comes=True, wanted=True, started=now)
        free = [name for name in resident if self._wishes[name] is Wish.AUTO and self._roster.serves(name)]
        free.sort(key=self._used.__getitem__)
        if free and (self.budget.spare(resident) < 0 or self._leaves(pressure, free[0], resident)):
            return _Move(free[0], comes=False, wanted=False, started=now)
        back = [name for name in away if self._wishes[name] is Wish.AUTO]
        if not back:
            self._calm_since = None
            return None
        name = max(back, key=lambda each: (self._used[each], -self.budget.held.get(each, 0)))
        needed = self._total - self.budget.blocks([*resident, name])
        fits = self.budget.spare([*resident, name]) >= 0
        if not fits or not self._policy.contracts(pressure, max(0, needed)):
            self._calm_since = None if fits else self._calm_since
            return None
        if self._calm_since is None:
            self._calm_since = now
        if now - self._calm_since < self._calm:
            return None
        self._calm_since = None
        return _Move(name, comes=True, wanted=False, started=now)

    def _leaves(self, pressure: Pressure, name: str, resident: list[str]) -> bool:
        gain = self.budget.blocks([each for each in resident if each != name]) - self._total
        used = sum(self._used.values())
        return self._policy.expands(pressure, gain, self._used[name] / used if used > 0 else 0.0)

    def _go_on(self, move: _Move) -> None:
        now = self._clock.now()
        if move.future is None:
            if now < move.not_before:
                return
            first = self._roster.state(move.name) is State.UNLOADED  # from then on its bytes are kept for it
            if move.comes and first and not self._made_room(move):
                return
            self._begin(move)
        elif move.future.done():
            self._end(move)

    def _made_room(self, move: _Move) -> bool:
        """Whether the pool has given back what the drafter will hold."""
        goal = self.budget.blocks([*self._resident(), move.name])
        if not self._breathes or self._total < goal:
            return True
        status = self._resize(goal)
        if status is ResizeStatus.OK:
            return True
        if status is ResizeStatus.IN_USE and not move.wanted:
            self._move = None  # there is no calm any more
        return False

    def _begin(self, move: _Move) -> None:
        self._roster.moves(move.name, State.LOADING if move.comes else State.UNLOADING)
        self._drop(move.name)
        act: Callable[[str], Any] = self._residency.load if move.comes else self._residency.unload
        started = self._clock.now()
        move.future = self._worker.submit(act, move.name)
        self._pauses["reload_dispatch" if move.comes else "unload_dispatch"].append(self._clock.now() - started)

    def _end(self, move: _Move) -> None:
        assert move.future is not None
        now, operation = self._clock.now(), "load" if move.comes else "unload"
        error = move.future.exception()
        if error is not None:
            self._count(operation, "failed")
            if not isinstance(error, CoveyError):
                log.error("%s of %s raised what it should not", operation, move.name, exc_info=error)
            log.warning("%s of %s failed, it is tried again in %g s: %s", operation, move.name, move.rest, error)
            move.future, move.not_before = None, now + move.rest
            move.rest = min(LONGEST_REST, 2 * move.rest)
            return
        self._move = None
        self._count(operation, "done", now - move.started)
        if move.comes:
            facts: DrafterInfo = move.future.result()
            self._roster.came(move.name, facts)
        else:
            held: int = move.future.result()
            if self.budget.held.get(move.name) and held:  # it has grown since it came
                self.budget.held[move.name] = held
            self._roster.moves(move.name, State.UNLOADED)
            self._policy_begins_anew()
        log.info("%s of %s took %.3g s", operation, move.name, now - move.started)

    def _policy_begins_anew(self) -> None:
        """What the pool gains is to be felt before another drafter leaves."""
        self._policy.note(Pressure(self._total, self._total))

    def _goal(self) -> int:
        """How many blocks the pool should have while nobody moves."""
        resident = self._resident()
        unknown = any(name not in self.budget.held for name in resident)
        if not self._breathes or unknown or self._clock.now() < self._resize_after:
            return self._total
        return self.budget.blocks(resident)

    def _resize(self, goal: int) -> ResizeStatus:
        """Take the next step to a pool of so many blocks."""
        started = self._clock.now()
        if started < max(self._polled + POLL, self._resize_after):
            return ResizeStatus.LATER
        operation = "expand" if goal > self._total else "contract"
        try:
            answer = self._target.resize(goal)
        except PortError as error:
            log.warning("the KV pool could not be resized: %s", error)
            self._rest(operation)
            return ResizeStatus.LATER
        ended = self._clock.now()
        self._polled, self._total = ended, answer.total_blocks
        self._seconds[operation] += ended - started
        self._pauses[operation].append(ended - started)
        if answer.status is ResizeStatus.OK:
            self._counts[operation, "done"] += 1
            self._resize_rest = FIRST_REST
        elif answer.status is not ResizeStatus.LATER:
            log.info("the KV pool stays at %d blocks, not %d: %s", answer.total_blocks, goal, answer.status.name)
            self._rest(operation)
        return answer.status

    def _rest(self, operation: str) -> None:
        self._counts[operation, "refused"] += 1
        self._resize_after = self._clock.now() + self._resize_rest
        self._resize_rest = min(LONGEST_REST, 2 * self._resize_rest)

    def _count(self, operation: str, outcome: str, seconds: float = 0.0) -> None:
        self._counts[operation, outcome] += 1
        self._seconds[operation] += seconds

    def _resident(self) -> list[str]:
        """Whose bytes are not the pool's: who leaves counts until it is gone, and who comes as soon as it begins."""
        return [name for name in self._roster.names if self._roster.state(name) is not State.UNLOADED]

    def _away(self) -> list[str]:
        return [name for name in self._roster.names if self._roster.state(name) is State.UNLOADED]
