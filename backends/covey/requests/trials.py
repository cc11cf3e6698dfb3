"""Finds which of the requests in a pass ended the target's process.

    the target dies         every row of that pass becomes a suspect
    for RESPITE             the requests that are not suspected are replayed, and go on alone
    one suspect after the   alone in a pass, the longest output first, since it is the likeliest to be innocent.
    other                   A token clears it. A second death proves that it ends the target
    the others together     once one is proven and TRIALS seconds have passed. A token clears each. A third death
                            fails them all, to be tried again

While culprits are found one after the other, the suspects that have waited for LONGEST_WAIT of this without a token are
tried together, and a death fails those of its pass, to be tried again. So nobody waits for long if the target loads in
seconds, however many requests end it and whenever they come. A target that loads for longer than LATELY has no such
second series.

An innocent request can be lost: when several requests end the target, those that are tried together are given up
together; and a process that somebody else kills in two passes over one request counts as two deaths of it.
"""

from __future__ import annotations

import math

from covey.requests.active import ActiveRequest

DEATHS = 2  # of the target in passes over one request, no token of it in between, before that request fails
RESPITE = 0.5  # seconds
TRIALS = 2.0  # seconds
LONGEST_WAIT = 6.0  # seconds
LATELY = 10.0  # seconds since a culprit was found, in which there may be others


class Trials:
    """Owns the order in which suspects are tried. A request's own `deaths` say whether it is one."""

    def __init__(self) -> None:
        self._began = 0.0  # when the target died over all of the suspects
        self._proven = False  # whether one of them is known to end the target
        self._found = -math.inf  # when one was last known to
        self._first = self._last = -math.inf  # deaths of those that came within LATELY of each other
        self._next: float | None = None  # when a suspect is tried; None: those that go on are not replayed yet

    def died(self, rows: list[ActiveRequest], now: float) -> tuple[list[ActiveRequest], list[ActiveRequest]]:
        """Suspect the rows of the pass in which the target died. Return those that are proven to end it, and those that
        are to be tried again by their clients."""
        if now - self._last > LATELY:
            self._first = now
        self._last, self._next = now, None
        for active in rows:
            active.deaths += 1
        twice = [active for active in rows if active.deaths >= DEATHS]
        others = now - self._found < LATELY
        if twice:
            self._proven, self._found = True, now
        if len(rows) == 1 and twice:
            return twice, []
        return [], twice + [active for active in rows if others and active.deaths < DEATHS and self._late(active, now)]

    def _late(self, active: ActiveRequest, now: float) -> bool:
        """Return whether the request has waited for its first token for too long since the target began to die."""
        return not active.output and now - max(active.request.arrival, self._first) > LONGEST_WAIT

    def passable(self, running: list[ActiveRequest], now: float) -> list[ActiveRequest]:
        """Return the running requests that may share the next pass. New requests wait for the end of the trials."""
        suspects = [active for active in running if active.deaths]
        if not suspects:
            self._began, self._proven = now, False
            return running
        cleared = [active for active in running if active.output and not active.deaths]
        if self._next is None and any(active.decoding for active in cleared):
            self._next = now + RESPITE
        if cleared and (self._next is None or now < self._next):
            return cleared
        if self._proven and now - self._began > TRIALS:
            return suspects
        late = [active for active in suspects if self._late(active, now)]
        if late and now - self._found < LATELY:
            return late
        return [min(suspects, key=lambda active: (-len(active.output), active.key))]
