"""Brings a failed target back, and fails the requests that killed it (`covey.requests.suspects` finds them)."""

from __future__ import annotations

import logging
from collections.abc import Callable

from covey.contracts.errors import CoveyError, Overloaded, PortError
from covey.requests.active import ActiveRequest
from covey.requests.scheduler import Batch, Scheduler
from covey.requests.suspects import DEATHS

log = logging.getLogger("covey.engine")

RECOVERIES = 3  # failures in a row, without a token or a culprit, before the requests of fatal passes fail

Fail = Callable[[list[ActiveRequest], CoveyError], None]


class Recovery:
    """Owns the number of the target's failures in a row. Only the engine's thread calls it."""

    def __init__(self, scheduler: Scheduler, recover: Callable[[PortError], None] | None, fail: Fail) -> None:
        """`recover` brings the target back, or raises. `fail` ends running requests with an error."""
        self._scheduler, self._recover, self._fail = scheduler, recover, fail
        self._failures = 0

    def progressed(self) -> None:
        """Note that a pass has told requests something new. Only that proves that the target is back: in a replay, the
        chunks before the fatal one succeed."""
        self._failures = 0

    def check(self, ask: Callable[[], object]) -> None:
        """Bring the target back if it does not answer `ask`. If that fails, the next request tries again."""
        if self._recover is None:
            return
        try:
            ask()
        except PortError as error:
            self._recovered(error)

    def failed(self, batch: Batch, error: PortError, now: float) -> None:
        """Fail the requests that killed the target twice, bring the target back and replay the others. After RECOVERIES
        failures, fail the requests of fatal passes; if the target stays away, all that run. Waiting requests may be
        innocent."""
        proven, given_up = self._scheduler.target_died(batch, now)
        self._failures = 0 if proven or given_up else self._failures + 1  # fewer requests run from now on
        log.error("target failed (%d of %d): %s", self._failures, RECOVERIES, error)
        twice = f"the target failed {DEATHS} times over this request, which is not tried again: {error}"
        self._fail(proven, CoveyError(twice))
        others = f" and {len(batch.rows) - 1} others" if len(batch.rows) > 1 else ""
        among = f"the target failed over this request{others}; one of them may be the cause; try again"
        self._fail(given_up, Overloaded(among))
        running = self._scheduler.running
        if self._failures >= RECOVERIES:
            self._fail([active for active in running.values() if active.deaths], error)
        if not self._recovered(error):
            self._failures = RECOVERIES
            self._fail(list(running.values()), error)
        if self._failures >= RECOVERIES:
            self._failures = 0
            if not batch.rows:
                self._scheduler.drop(batch.frees)  # nothing waits for these frees; retrying them would go on for ever

    def _recovered(self, error: PortError) -> bool:
        """Bring the target back. Return whether that succeeded."""
        if self._recover is None:
            return False
        try:
            self._recover(error)
        except Exception as problem:  # any failure: waiting requests must not hang
            log.error("cannot recover the target: %s: %s", type(problem).__name__, problem)
            return False
        return True
