"""Replaces planned drafts of a row by drafts from its request's own text, if those are worth more.

Time is counted in tokens that plain decoding emits meanwhile. A row takes the first m tokens of its offer, for the m
that gains most: accepted(m) - m * draft_cost. It does so only if that exceeds the gain of its planned drafts. The cost
of a draft comes from the curve of passes (`Expectations.draft_cost`).

The first draft of a round costs more than the curve shows. Among plain rounds the target begins each pass early, and it
does so again only some rounds after one with drafts. So the cost is measured for each batch size. Rounds of n rows that
took offers cost

    cost = n (their seconds + what the next plain rounds take longer than usual) / plain rounds' seconds - n

tokens, and brought a share of those they promised. If the round has no other drafts, offers must promise more than the
cost. For example, plain rounds of 4 rows take 3 ms, those with offers 5 ms, and the plain ones after them 0.6 ms more
than usual in all. Then the offers of all rows must promise 4 (5 + 0.6) / 3 - 4 = 3.5 tokens together, or 4.3 if only
80 % of the promised tokens come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from covey.contracts.types import LOOKUP
from covey.requests.active import ActiveRequest
from covey.requests.rounds import Plan, Round

WHY = "text"
NEW = 0.05  # weight of a new round in each mean
AGAIN = 200  # after this many rounds without taking offers, they are tried: their cost may have changed
USUAL = 0.5  # the cost before any was measured, in plain rounds
SETTLING = 8  # rounds after one with drafts, until plain ones take their usual time again
FAR = 3.0  # times a plain round: a longer round has another cause, and is clipped to this


@dataclass(slots=True)
class _Size:
    """The measurements of rounds of about one batch size."""

    plain: float = 0.0  # seconds
    cost: float = USUAL  # of a round with offers, in plain rounds
    after: float = 0.0  # of the plain rounds after it, likewise
    promised: float = 1.0  # tokens that a round's offers promised, and tokens that came
    came: float = 1.0
    left: int = 0  # consecutive rounds whose offers were not taken

    @property
    def whole_cost(self) -> float:
        return self.cost + max(0.0, self.after)


class Offers:
    """Owns the cost and gain of rounds with offers, by batch size."""

    def __init__(self) -> None:
        self._sizes: dict[int, _Size] = {}
        self._promised = 0.0  # tokens, by the offers in the last plan
        self._quiet = SETTLING  # consecutive rounds without drafts
        # The size of the last round with offers until the plain rounds after it are settled, and their time beyond the
        # usual, in plain rounds.
        self._unsettled: _Size | None = None
        self._longer = 0.0

    def taken(
        self,
        plan: Plan,
        rows: Sequence[ActiveRequest],
        draft_cost: float,
        planned: float,
        most: int,
        value: float = 1.0,
    ) -> Plan:
        """Return the plan with the decoding rows' offers that are worth taking, at most `most` tokens of each (not
        negative). `planned` is how many tokens a row gains by the policy's drafts. `value` multiplies all costs:
        it is above 1 while other requests wait for their prompts."""
        found, gained, self._promised = dict[int, int](), 0.0, 0.0
        size = self._size(len(rows))
        offered = [
            (row, active.offer)
            for row, active in enumerate(rows)
            if active.offer is not None and active.offer.num_tokens == active.num_tokens and active.offer.tokens[:most]
        ]
        if not offered:
            return plan
        again = size.left >= AGAIN
        trust = 1.0 if again else min(1.0, size.came / size.promised)
        for row, offer in offered:
            gains = [
                trust * accepted - value * draft_cost * count for count, accepted in enumerate(offer.accepted[:most], 1)
            ]
            best = max(range(len(gains)), key=gains.__getitem__)
            if gains[best] > (max(0.0, planned) if plan.depth[row] else 0.0):
                found[row] = best + 1
                gained += trust * offer.accepted[best]
                self._promised += offer.accepted[best]
        if not found or not (again or plan.depth.any() or gained > value * len(rows) * size.whole_cost):
            size.left += 1
            return plan
        size.left = 0
        depth, width = plan.depth.copy(), plan.width.copy()
        drafters, why = list(plan.drafter), list(plan.why)
        for row, count in found.items():
            depth[row], width[row], drafters[row], why[row] = count, 1, LOOKUP, WHY
        return replace(plan, depth=depth, width=width, drafter=tuple(drafters), why=tuple(why))

    def learn(self, done: Round) -> None:
        """Learn from a round, unless a drafter drafted in it or the target read prompts."""
        rows, drafted = done.batch.decoding, np.flatnonzero(done.plan.depth)
        if rows < len(done.batch.rows) or not rows or not done.emitted or done.plan.next_depth.any():
            return
        size, seconds = self._size(rows), done.times.whole
        if not len(drafted):
            self._learn_plain(size, min(seconds, FAR * size.plain) if size.plain else seconds)
            return
        self._settle()
        self._quiet = 0
        if size.plain and all(done.plan.drafter[row] == LOOKUP for row in drafted.tolist()):
            self._unsettled = size
            size.cost += NEW * (min(seconds / size.plain, FAR) - 1.0 - size.cost)
            size.promised += NEW * (self._promised - size.promised)
            size.came += NEW * (done.emitted - rows - size.came)

    def _learn_plain(self, size: _Size, seconds: float) -> None:
        self._quiet += 1
        if not size.plain:
            size.plain = seconds
        elif self._quiet > SETTLING:
            size.plain += NEW * (seconds - size.plain)
        elif size is self._unsettled:
            self._longer += seconds / size.plain - 1.0
        if self._quiet == SETTLING:
            self._settle()

    def _settle(self) -> None:
        """Learn what the plain rounds after the last one with offers took beyond their usual time."""
        if self._unsettled is not None:
            self._unsettled.after += NEW * (self._longer - self._unsettled.after)
        self._unsettled, self._longer = None, 0.0

    def _size(self, rows: int) -> _Size:
        return self._sizes.setdefault(rows.bit_length() if rows > 2 else -rows, _Size())
