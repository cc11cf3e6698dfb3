"""Takes offers of drafts from requests' own texts into the plan of a round, where they are worth more than what was
planned.

All is counted in tokens, of what plain decoding emits in the same time. A row takes as much of its offer as gains most,
accepted(m) - each m, where `each` is what a draft costs by the curve of passes (`Expectations.each_draft`), if that is
more than its planned drafts gain. That a round has any draft at all costs more, and no curve says how much: the target
may have begun a plain pass ahead of its time, which is then made twice for the rows whose first draft was right. So it
is measured, for each size of batch: rounds of n rows that took offers last

    cost   n (their seconds / plain rounds' seconds - 1)

and brought a share of the tokens that they promised. Where nobody drafts else, offers are taken if they promise more
than that. For example, plain rounds of 4 rows take 3 ms and those with offers 5 ms: the offers of all rows together
must promise 2.7 tokens, or 3.3 where only .8 of what is promised comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from covey.contracts.types import LOOKUP
from covey.requests.active import ActiveRequest
from covey.requests.rounds import Plan, Round

WHY = "text"
MEMORY = 0.05  # weight of a new round
AGAIN = 200  # rounds whose offers were left, after which one is taken: what it costs may have changed
USUAL = 0.5  # the cost before any was measured, in plain rounds
FAR = 3.0  # a round that takes so many times as long tells of something else


@dataclass(slots=True)
class _Size:
    """What is known of rounds of about so many rows."""

    plain: float = 0.0  # seconds
    cost: float = USUAL  # of a round with offers, in plain rounds
    promised: float = 1.0  # tokens of a round's offers, and what came of them
    came: float = 1.0
    left: int = 0  # rounds in a row whose offers were left


class Offers:
    """Owns what rounds with offers cost and bring, by the size of the batch."""

    def __init__(self) -> None:
        self._sizes: dict[int, _Size] = {}
        self._promised = 0.0  # by the offers that the last plan took

    def taken(self, plan: Plan, rows: Sequence[ActiveRequest], each: float, planned: float, most: int) -> Plan:
        """Return the plan with what is taken of these decoding rows' offers, at most `most` tokens of each, which is at
        least 0. `planned` are the tokens that a row of the policy's gains by its drafts."""
        found, gained, self._promised = dict[int, int](), 0.0, 0.0
        size = self._size(len(rows))
        offered = [
            (row, active.offer)
            for row, active in enumerate(rows)
            if active.offer is not None and active.offer.behind == active.num_tokens and active.offer.tokens[:most]
        ]
        if not offered:
            return plan
        again = size.left >= AGAIN
        trust = 1.0 if again else min(1.0, size.came / size.promised)
        for row, offer in offered:
            gains = [trust * accepted - each * count for count, accepted in enumerate(offer.accepted[:most], 1)]
            best = max(range(len(gains)), key=gains.__getitem__)
            if gains[best] > (max(0.0, planned) if plan.depth[row] else 0.0):
                found[row] = best + 1
                gained += trust * offer.accepted[best]
                self._promised += offer.accepted[best]
        if not found or not (again or plan.depth.any() or gained > len(rows) * size.cost):
            size.left += 1
            return plan
        size.left = 0
        depth, width = plan.depth.copy(), plan.width.copy()
        drafters, why = list(plan.drafter), list(plan.why)
        for row, count in found.items():
            depth[row], width[row], drafters[row], why[row] = count, 1, LOOKUP, WHY
        return replace(plan, depth=depth, width=width, drafter=tuple(drafters), why=tuple(why))

    def learn(self, done: Round) -> None:
        """Learn from a round, if nobody else drafted in it and it read no prompt."""
        rows, drafted = done.batch.decoding, np.flatnonzero(done.plan.depth)
        if rows < len(done.batch.rows) or not rows or not done.emitted:
            return
        size, seconds = self._size(rows), done.times.whole
        if not len(drafted):
            if size.plain:
                seconds = min(seconds, FAR * size.plain)
            size.plain += (MEMORY if size.plain else 1.0) * (seconds - size.plain)
        elif size.plain and all(done.plan.drafter[row] == LOOKUP for row in drafted.tolist()):
            size.cost += MEMORY * (min(seconds / size.plain, FAR) - 1.0 - size.cost)
            size.promised += MEMORY * (self._promised - size.promised)
            size.came += MEMORY * (done.emitted - rows - size.came)

    def _size(self, rows: int) -> _Size:
        return self._sizes.setdefault(rows.bit_length() if rows > 2 else -rows, _Size())
