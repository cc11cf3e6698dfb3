"""Tells the engine which drafters' processes have come and ended, and what facts each drafter reports.

`covey.supervision.presence` reports both at any time. An engine that is being built receives them when it joins.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection

from covey.contracts.types import DrafterInfo, TargetInfo
from covey.loop.engine import Engine
from covey.requests.roster import MOVED, Roster, State

log = logging.getLogger("covey.orchestrator")


class DrafterFacts:
    """Owns the facts of each drafter that has a process. After an engine has joined, its roster agrees with them. Both
    change under one lock, so nothing is reported twice or lost. Any thread may call."""

    def __init__(self, target: str, failed: Callable[[str], None]) -> None:
        """`failed` is called when a drafter of the engine has ended."""
        self.target, self._failed = target, failed
        self._known: dict[str, DrafterInfo] = {}
        self._changed = threading.Condition()
        self._engine: Engine | None = None
        self._info: TargetInfo | None = None

    def came(self, model: str, facts: DrafterInfo | None) -> None:
        """Note that a process has come, with its facts. They are None for the target: the engine's thread asks it."""
        if facts is None:
            return
        with self._changed:
            self._known[model] = facts
            self._changed.notify_all()
            if self._engine is not None:
                self._tell(self._engine.roster, model, facts)

    def ended(self, model: str) -> None:
        """Note that a process has ended. A drafter on its way in or out of memory is left to the memory part."""
        with self._changed:
            self._known.pop(model, None)
            if self._engine is None:
                return
            roster = self._engine.roster
            if model == self.target:
                self._engine.suspect()
            elif roster.state(model) not in (*MOVED, State.ABSENT):
                roster.gone(model)
                self._failed(model)

    def wait(self, names: Collection[str], seconds: float) -> dict[str, DrafterInfo]:
        """Wait at most `seconds` for the facts of all these drafters. Return the facts known then."""
        with self._changed:
            self._changed.wait_for(lambda: self._known.keys() >= set(names), seconds)
            return dict(self._known)

    def join(self, engine: Engine, info: TargetInfo) -> set[str]:
        """Report all drafters to the engine, now and from now on. Return the missing ones."""
        with self._changed:
            self._engine, self._info = engine, info
            for name, facts in self._known.items():
                self._tell(engine.roster, name, facts)
            return set(engine.roster.names) - self._known.keys()

    def _tell(self, roster: Roster, name: str, facts: DrafterInfo) -> None:
        """Report a drafter to the roster. Does nothing while the memory part moves the drafter."""
        if name not in roster.names or roster.state(name) in MOVED:
            return
        assert self._info is not None, "it came with the engine"
        if is_foreign(name, facts, self._info):
            roster.declined(name, math.inf)
        else:
            roster.came(name, facts)


def is_foreign(name: str, own: DrafterInfo, info: TargetInfo) -> bool:
    """Return whether a drafter may propose tokens that the target lacks, or reads other states; log it if so."""
    if own.state_width not in (0, info.state_width):
        log.error("drafter %s is not used: it reads the target's states, but target.head does not name it", name)
        return True
    if own.vocab_size <= info.vocab_size:
        return False
    told = name, own.vocab_size, info.model, info.vocab_size
    log.error("drafter %s is not used: its vocabulary has %d tokens, that of %s has %d", *told)
    return True
