"""Resizes the target's KV pool step by step, between rounds."""

from __future__ import annotations

import logging

from covey.contracts.errors import PortError
from covey.contracts.ports import Clock, Target
from covey.contracts.types import ResizeStatus
from covey.loop.memory_totals import MemoryTotals
from covey_client.backoff import Backoff

log = logging.getLogger("covey.memory")

POLL = 0.005  # seconds between steps of a resize
FIRST_REST, LONGEST_REST = 0.5, 30.0  # after a refused step


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
