"""Finds which requests in a pass crashed the target's process.

    the target dies         every row of that pass becomes a suspect
    for RESPITE             the requests without suspicion are replayed, and run alone
    one suspect after       each alone in a pass, the longest output first, since it is the likeliest to be innocent.
    another                 A token clears it. A second death proves that it crashes the target
    the others together     after one is proven and TRIALS seconds have passed. A token clears each. A third death
                            fails them all, and their clients may retry

While culprits keep being found, suspects without any token that have waited for LONGEST_WAIT, or LONGEST_IN_A_CROWD,
are tried together. A death fails all of that pass, and their clients may retry. So no request waits long if the target
loads in seconds, even if many requests crash it. If loading takes longer than LATELY, suspects are not tried together
in this way.

An innocent request can be lost in two ways. If several requests crash the target, those tried together fail together.
If another process kills the target in two passes over one request, that counts as two deaths of it.
"""

from __future__ import annotations

import math

from covey.requests.active import ActiveRequest

DEATHS = 2  # of the target in passes over one request, no token of it in between, before that request fails
RESPITE = 0.5  # seconds
TRIALS = 2.0  # seconds
CROWD = 4  # suspects; trying more of them one by one takes too long
LONGEST_WAIT, LONGEST_IN_A_CROWD = 6.0, 4.0  # seconds
LATELY = 10.0  # seconds after a culprit was found in which others are likely


class Suspects:
    """Owns the order in which suspects are tried. A request is a suspect if its `deaths` are not 0."""

    def __init__(self) -> None:
        self._began = 0.0  # when the present trials began
        self._proven = False  # whether one suspect is proven to crash the target
        self._found = -math.inf  # when a culprit was last proven
        self._first = self._last = -math.inf  # the first and last death of a series less than LATELY apart
        self._next: float | None = None  # when a suspect is tried; None: the others are not replayed yet

    def died(self, rows: list[ActiveRequest], now: float) -> tuple[list[ActiveRequest], list[ActiveRequest]]:
        """Suspect the rows of the pass in which the target died. Return those that are proven to crash it, and those
        that fail but whose clients may retry."""
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
        return [], twice + [active for active in self._late(rows, now) if others and active.deaths < DEATHS]

    def _late(self, suspects: list[ActiveRequest], now: float) -> list[ActiveRequest]:
        """Return those that have waited too long for their first token since the first death of the series."""
        longest = LONGEST_WAIT if len(suspects) <= CROWD else LONGEST_IN_A_CROWD
        waits = ((active, now - max(active.request.arrival, self._first)) for active in suspects)
        return [active for active, waited in waits if not active.output and waited > longest]

    def passable(self, running: list[ActiveRequest], now: float) -> list[ActiveRequest]:
        """Return the running requests that may share the next pass. New requests wait until the trials end."""
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
        late = self._late(suspects, now)
        if late and now - self._found < LATELY:
            return late
        return [min(suspects, key=lambda active: (-len(active.output), active.key))]
