"""Chooses which drafter leaves memory or comes back next: an administrator's wish first, then the policy's choice."""

from __future__ import annotations

import enum

from covey.contracts.ports import Clock
from covey.kv.elastic import Budget, Never, Pressure
from covey.requests.roster import MOVED, Roster, State
from covey_client.backoff import Backoff

FIRST_REST, LONGEST_REST = 0.5, 30.0  # seconds after a move that failed
LATELY = 0.999  # weight of earlier use, per round


class Wish(enum.Enum):
    """An administrator's wish about a drafter."""

    AUTO = "auto"  # the policy decides
    PINNED = "pinned"  # in memory
    OUT = "out"  # not in memory


class Act(enum.Enum):
    """A move of a drafter."""

    UNLOAD = "unload"
    LOAD = "load"


class Moves:
    """Owns the wishes, how much each drafter was used lately, and the rests after moves that failed."""

    def __init__(self, roster: Roster, clock: Clock, policy: Never, budget: Budget, calm: float) -> None:
        """A drafter comes back after the policy has allowed it for `calm` seconds."""
        self.wishes: dict[str, Wish] = dict.fromkeys(roster.names, Wish.AUTO)
        self._roster, self._clock, self._policy, self._budget, self._calm = roster, clock, policy, budget, calm
        self._used: dict[str, float] = dict.fromkeys(roster.names, 0.0)
        self._backoffs: dict[tuple[str, Act], Backoff] = {}  # of the moves that failed
        self._calm_since: float | None = None

    @property
    def waiting(self) -> bool:
        """Return whether a drafter may come back after some more seconds of calm."""
        return self._calm_since is not None

    @property
    def due(self) -> bool:
        """Return whether `next` may return a move although nothing has changed."""
        wished = any(wish is not Wish.AUTO for wish in self.wishes.values())
        return wished or any(self._roster.state(name) in MOVED for name in self.wishes)

    def note(self, pressure: Pressure) -> None:
        """Note the round that the pressure was measured in."""
        self._policy.note(pressure)
        for name in self._used:
            self._used[name] = LATELY * self._used[name] + pressure.drafters.get(name, 0)

    def next(self, pressure: Pressure, total: int) -> tuple[str, Act] | None:
        """Return the move to begin now, if any. The pool has `total` blocks."""
        return self._wanted() or self._leaves(total) or self._comes(pressure, total)

    def resident(self) -> list[str]:
        """Return the drafters whose bytes the pool may not use: one that leaves counts until it is gone, one that loads
        from its start on."""
        return [name for name in self._roster.names if self._roster.state(name) is not State.UNLOADED]

    def began(self) -> None:
        """Note that a move began."""
        self._calm_since = None

    def done(self, name: str, act: Act) -> None:
        """Note that a move of the drafter succeeded."""
        for each in Act:
            self._backoffs.pop((name, each), None)
        if act is Act.UNLOAD:
            self._policy.gave()

    def failed(self, name: str, act: Act) -> float:
        """Note that a move failed. Return the seconds until it may be tried again."""
        backoff = self._backoffs.setdefault((name, act), Backoff(FIRST_REST, LONGEST_REST, self._clock.now))
        return backoff.failed()

    def _wanted(self) -> tuple[str, Act] | None:
        """Return the drafter to move and how. Departures come first, as they make room; failed moves are retried."""
        for which in (Wish.OUT, Wish.PINNED, Wish.AUTO):
            for name, wish in self.wishes.items():
                act = _due(wish, self._roster.state(name)) if wish is which else None
                if act is not None and self._may(name, act):
                    return name, act
        return None

    def _leaves(self, total: int) -> tuple[str, Act] | None:
        """Return the move that gives the pool the bytes of the least used drafter, if the policy wants them."""
        resident = self.resident()
        blocks = self._budget.blocks(resident)
        free = [name for name in resident if self.wishes[name] is Wish.AUTO and self._roster.serves(name)]
        for name in sorted(free, key=self._used.__getitem__):
            after = [each for each in resident if each != name]
            gain = self._budget.blocks(after) - blocks
            more = gain > 0 and blocks <= total  # else the pool has not yet taken the last gift
            if self._may(name, Act.UNLOAD) and more:
                return (name, Act.UNLOAD) if self._policy.expands(gain) else None
        return None

    def _comes(self, pressure: Pressure, total: int) -> tuple[str, Act] | None:
        """Return the move that brings a drafter back, after there has been room for `calm` seconds."""
        away = [name for name, wish in self.wishes.items() if wish is Wish.AUTO]
        back = [name for name in away if self._roster.state(name) is State.UNLOADED and self._may(name, Act.LOAD)]
        if not back:
            self._calm_since = None
            return None
        name = max(back, key=lambda each: (self._used[each], -self._budget.held.get(each, 0)))
        needed = max(0, total - self._budget.blocks([*self.resident(), name]))
        if not self._policy.contracts(pressure, needed):
            self._calm_since = None
            return None
        now = self._clock.now()
        if self._calm_since is None:
            self._calm_since = now
        return (name, Act.LOAD) if now - self._calm_since >= self._calm else None

    def _may(self, name: str, act: Act) -> bool:
        """Return whether this move of the drafter is possible now. It is not while it rests after a failure."""
        failed = self._backoffs.get((name, act))
        return self._roster.state(name) is not State.ENDED and (failed is None or not failed.resting)


def _due(wish: Wish, state: State) -> Act | None:
    """Return the move that a wish or an earlier failure makes due, regardless of the policy."""
    if wish is Wish.OUT:
        return None if state is State.UNLOADED else Act.UNLOAD
    if wish is Wish.PINNED:
        return Act.LOAD if state in MOVED else None
    return {State.UNLOADING: Act.UNLOAD, State.LOADING: Act.LOAD}.get(state)  # a move that failed
