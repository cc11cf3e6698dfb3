"""The roster lists all drafters, and knows which of them are available now.

    SERVING --late--> LATE --its call ended--> RESTING or SERVING
       |                |
       +-----failed-----+--> RESTING --its time is up--> SERVING

    any of them --> UNLOADING --> UNLOADED --> LOADING --it came--> RESTING or SERVING      (covey.loop.memory)
    any of them --its process ended--> ENDED --it came--> RESTING or SERVING                (covey.supervision)

A drafter that failed or was late rests, with exponential backoff, so a dead one does not delay every round. A late one
also rests until its call has ended. A successful call resets the backoff. A drafter that has no place for this engine
rests as long as it says.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from covey.contracts.ports import Clock
from covey.contracts.types import DrafterInfo
from covey_client.backoff import Backoff

FIRST_REST, LONGEST_REST = 0.5, 30.0  # seconds
FIRST_OWN, LONGEST_OWN = 60.0, 3600.0  # ... of the target's own head


class State(enum.Enum):
    SERVING = "serving"
    LATE = "late"  # a call has not ended
    RESTING = "resting"
    ABSENT = "absent"  # there is no drafter of that name
    UNLOADING = "unloading"  # its process will end
    UNLOADED = "unloaded"
    LOADING = "loading"  # or waits for a retry
    ENDED = "ended"  # its process has ended, and `covey.supervision` restarts it


MOVED = (State.UNLOADING, State.UNLOADED, State.LOADING)  # by elastic memory


@dataclass(slots=True)
class _Entry:
    backoff: Backoff
    late: bool = False
    facts: DrafterInfo | None = None
    positions: float = math.inf  # by the last facts
    away: State | None = None  # the reason if it is not loaded
    lost: float = -math.inf  # when its process was last seen to end


class Roster:
    """Owns every drafter's state and facts. The engine's thread changes states. Any thread may read them, and note
    that a drafter came, ended or declined."""

    def __init__(self, names: Iterable[str], clock: Clock, own_head: str = "") -> None:
        """`own_head` is the head that the target computes as well: rows get its drafts with the reply to each pass."""
        self._clock = clock
        self._own_head, self._own_backoff = own_head, Backoff(FIRST_OWN, LONGEST_OWN, clock.now)
        self._entries = {name: _Entry(Backoff(FIRST_REST, LONGEST_REST, clock.now)) for name in names}

    @property
    def names(self) -> tuple[str, ...]:
        """Return all drafters, in the profile's order."""
        return tuple(self._entries)

    @property
    def own_head(self) -> str:
        """Return the head that the target itself drafts with now, or "". Does not mutate."""
        return "" if self._own_backoff.resting else self._own_head

    def own_head_failed(self) -> None:
        """Note that the target's own head has failed, or that the target has died, perhaps of it. Drafts come from the
        head's process for a while."""
        self._own_backoff.failed()

    def drafter_of(self, wanted: str) -> str:
        """Return the drafter of a request without a policy: `wanted`, or the first, or ""."""
        return wanted or next(iter(self._entries), "")

    def state(self, name: str) -> State:
        entry = self._entries.get(name)
        if entry is None:
            return State.ABSENT
        if entry.away is not None:
            return entry.away
        if entry.late:
            return State.LATE
        return State.RESTING if entry.backoff.resting else State.SERVING

    def states(self) -> dict[str, str]:
        """Return the states of all drafters, in words."""
        return {name: self.state(name).value for name in self._entries}

    def serves(self, name: str) -> bool:
        """Return whether the drafter is available."""
        return self.state(name) is State.SERVING

    def comes_with_pass(self, name: str, *, coupled: bool) -> bool:
        """Return whether a row's drafts by this drafter come with the target's replies. The drafter's own process is
        not needed for them. Does not mutate."""
        return coupled and name == self._own_head != "" and not self._own_backoff.resting

    def drafts(self, name: str, *, coupled: bool) -> bool:
        """Return whether there are drafts by this drafter for a row, whoever makes them. Does not mutate."""
        return self.comes_with_pass(name, coupled=coupled) or self.serves(name)

    def came(self, name: str, facts: DrafterInfo) -> None:
        """Note that a drafter was loaded, with its facts."""
        entry = self._entries[name]
        entry.facts, entry.positions, entry.away = facts, facts.max_positions, None

    def ended_since(self, name: str, asked: float) -> bool:
        """Return whether the drafter's process ended after the time `asked`. Does not mutate."""
        return asked <= self._entries[name].lost

    def facts(self, name: str) -> DrafterInfo | None:
        """Return the drafter's facts; None while it is not loaded. Does not mutate."""
        return self._entries[name].facts

    def positions(self, name: str) -> float:
        """Return the longest text that it can hold, drafts included; infinite if unknown. Does not mutate."""
        entry = self._entries.get(name)
        return math.inf if entry is None else entry.positions

    def moves(self, name: str, state: State) -> None:
        """Note that a drafter is UNLOADING, UNLOADED, LOADING or ENDED."""
        self._entries[name].away, self._entries[name].facts = state, None

    def gone(self, name: str) -> None:
        """Note that the drafter's process has ended."""
        self.moves(name, State.ENDED)
        self._entries[name].lost = self._clock.now()

    def gauges(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Yield metric, labels and value. Does not mutate."""
        for name, entry in self._entries.items():
            yield "covey_drafter_serving", {"drafter": name}, self.serves(name)
            yield (
                "covey_drafter_resident_bytes",
                {"drafter": name},
                entry.facts.resident_bytes if entry.facts is not None else 0,
            )

    def declined(self, name: str, seconds: float) -> None:
        """Note that a drafter declines to serve this engine for `seconds`."""
        self._entries[name].backoff.rest(seconds)

    def answered(self, name: str) -> None:
        self._entries[name].backoff.succeeded()

    def late(self, name: str) -> None:
        """Note that the drafter's call is late. It is not asked again before the call has ended and it has rested."""
        self._entries[name].late = True
        self.failed(name)

    def settled(self, name: str) -> None:
        """Note that the drafter's late call has ended."""
        self._entries[name].late = False

    def failed(self, name: str) -> None:
        self._entries[name].backoff.failed()
