"""What each sender of a shared drafter was given and takes, and how many of them it can serve.

    S       its calls' part of the drafter's time
    Z       from an answer to the sender's next call: its pass, and the way there and back
    T(N)    max(N S, S + Z), a round of N senders (`covey_client.star.model`, the paper's formula)
    N_max   the most with which a row's tokens in T(N) are no fewer than it would have alone, decoding plainly

How long a token takes a sender alone it says with its calls; who has not said so yet is no reason to refuse others.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from covey.star.calls import Call
from covey.types import DraftReply

FORGETS = 0.1  # weight of the newest
GONE = 5.0  # seconds without a call after which a sender is none of those that are served
AGAIN = 1.0  # seconds after which a sender that was refused may ask again
UNLIMITED = 1 << 30

Totals = defaultdict[str, float]


@dataclass(slots=True)
class Account:
    """Of one sender. Seconds; averages of late, 0 where nothing is known."""

    caller: str
    heard: float
    answered: float = math.nan
    plain: float = 0.0
    service: float = 0.0
    away: float = 0.0
    tokens: float = 0.0  # that a round brings a row
    totals: Totals = field(default_factory=lambda: defaultdict(float))  # of calls by outcome, and of seconds

    def average(self, name: str, value: float) -> None:
        before = getattr(self, name)
        setattr(self, name, value if not before else before + FORGETS * (value - before))


class Accounts:
    """Owns them, by sender. Called by one thread at a time."""

    def __init__(self) -> None:
        self._of: dict[int, Account] = {}
        self._past: dict[str, Totals] = defaultdict(lambda: defaultdict(float))  # of senders that are gone, by server

    def called(self, call: Call) -> None:
        """A call has come."""
        account = self._of.get(call.who)
        if account is None:
            account = self._of[call.who] = Account(call.caller, call.arrived)
        work = call.work
        account.heard = call.arrived
        account.plain = work.plain or account.plain
        if work.reading is not None:
            return
        if account.answered == account.answered:  # it was answered before
            account.average("away", max(0.0, call.arrived - account.answered))
            account.answered = math.nan
        opened = [opening.tag for opening in work.opens]
        told = np.diff(work.offsets)[~np.isin(work.tags, opened)]
        if len(told):
            account.average("tokens", float(told.mean()))

    def served(self, call: Call, reply: DraftReply, seconds: float, now: float) -> None:
        """It was drafted for, and its part of the drafter's time was so long."""
        account = self._of[call.who]
        account.totals["drafted"] += 1
        account.totals["service"] += seconds
        account.totals["wait"] += reply.wait_seconds
        account.totals["levels"] += call.depth
        if call.work.reading is None:
            account.average("service", seconds)
            account.answered = now

    def turned_away(self, call: Call, outcome: str, wait: float) -> None:
        """Nothing was drafted: `late`, `refused` or `failed`."""
        account = self._of.get(call.who)
        totals = self._past[call.caller] if account is None else account.totals
        totals[outcome] += 1
        totals["wait"] += wait
        if outcome == "refused" and account is not None:
            self._leave(call.who)

    def gone(self, now: float) -> list[int]:
        """Removes and returns the senders that are silent."""
        silent = [who for who, account in self._of.items() if now - account.heard > GONE]
        for who in silent:
            self._leave(who)
        return silent

    def __len__(self) -> int:
        return len(self._of)

    def __iter__(self) -> Iterator[int]:
        return iter(self._of)

    @property
    def most(self) -> int:
        """N_max for senders like those that are served; `UNLIMITED` where nobody has said what he does alone. Does not
        mutate."""
        known = [each for each in self._of.values() if each.service and each.plain and each.tokens]
        if not known:
            return UNLIMITED
        service = sum(each.service for each in known) / len(known)
        return min(_most(service, each) for each in known)

    def admits(self, who: int) -> bool:
        """Whether a sender is served: one that is already, and one more while there is room. Does not mutate."""
        return who in self._of or len(self._of) < self.most or not self._of

    def figures(self) -> dict[str, Totals]:
        """Totals by server. Does not mutate."""
        found: dict[str, Totals] = defaultdict(lambda: defaultdict(float))
        for name, totals in [*self._past.items(), *((each.caller, each.totals) for each in self._of.values())]:
            _add(found[name], totals)
        return found

    def _leave(self, who: int) -> None:
        account = self._of.pop(who)
        _add(self._past[account.caller], account.totals)


def _add(totals: Totals, more: Totals) -> None:
    for name, value in more.items():
        totals[name] += value


def _most(service: float, account: Account) -> int:
    """The largest N with max(N S, S + Z) at most what its tokens take it alone."""
    bound = account.tokens * account.plain
    return math.floor(bound / service + 1e-9) if service + account.away <= bound * (1 + 1e-9) else 0
