"""The accounts of a shared drafter's senders: what each was given and takes, and how many of them it can serve.

    S       its calls' part of the drafter's time
    Z       from an answer to the sender's next call: its pass, and the way there and back
    T       max(sum of all S, S + Z), a round of a sender among others (`covey_client.star.model`, the paper's formula)
    set     the largest one whose objectives hold: in T each one's rows gain no fewer tokens than alone without drafts
    N_max   how many that is, with more like those that are served as far as they fit

One server's second sender comes after every server's first: whoever has many leaves room for those that have one. How
long a token takes a sender alone it says with its calls; who has not said so yet, or was not served often enough
to be judged, is no reason to refuse others. Who is not of the set is refused: a drafter that gains one nothing, or
whose share is what the others lack.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from covey.contracts.types import DraftReply
from covey.star.calls import Call
from covey.wire.ledger import group_of_sender

FORGETS = 0.1  # weight of the newest
GONE = 5.0  # seconds without a call after which a sender is none of those that are served
AGAIN = 1.0  # seconds after which a sender that was refused may ask again
SETTLED = 16  # calls that were drafted for, by which a sender can be judged
SLACK = 1.1  # of what those who are served may take together, so that noise sends nobody away
UNLIMITED = 1 << 30

Totals = defaultdict[str, float]  # of calls by outcome, and of seconds


@dataclass(slots=True)
class Account:
    """The account of one sender, in seconds; recent averages, 0 where nothing is known."""

    last_call: float
    answered: float = math.nan
    plain: float = 0.0
    service: float = 0.0
    away: float = 0.0
    tokens: float = 0.0  # that a round brings a row
    calls: int = 0  # that were drafted for

    def average(self, name: str, value: float) -> None:
        before = getattr(self, name)
        setattr(self, name, value if not before else before + FORGETS * (value - before))

    @property
    def settled(self) -> bool:
        return self.calls >= SETTLED and bool(self.service and self.plain and self.tokens)

    @property
    def objective(self) -> float:
        """Return the seconds that a round may take; infinite where that is not known."""
        return self.tokens * self.plain if self.settled else math.inf


class Accounts:
    """Owns the accounts, by sender. Called by one thread at a time."""

    def __init__(self) -> None:
        self._of: dict[int, Account] = {}
        self._totals: dict[str, Totals] = defaultdict(lambda: defaultdict(float))  # by server

    def called(self, call: Call) -> None:
        """Note that a call has come."""
        account = self._of.get(call.who)
        if account is None:
            account = self._of[call.who] = Account(call.arrived)
        work = call.work
        account.last_call = call.arrived
        account.plain = work.plain or account.plain
        if work.judging is not None:
            return
        opened = [opening.tag for opening in work.opens]
        told = np.diff(work.offsets)[~np.isin(work.tags, opened)]
        if len(told):  # else all rows are new ones, and it may have had no requests meanwhile
            account.average("tokens", float(told.mean()))
            if account.answered == account.answered:  # it was answered before
                account.average("away", max(0.0, call.arrived - account.answered))
        account.answered = math.nan

    def served(self, call: Call, reply: DraftReply, seconds: float, now: float) -> None:
        """Note that the sender was drafted for, and how long its part of the drafter's time was."""
        account, totals = self._of.get(call.who), self._totals[call.caller]
        totals["drafted"] += 1
        totals["service"] += seconds
        totals["wait"] += reply.wait_seconds
        totals["levels"] += call.depth
        if account is not None and call.work.judging is None:  # it may have been refused since
            account.calls += 1
            account.average("service", seconds)
            account.answered = now

    def turned_away(self, call: Call, outcome: str, wait: float) -> None:
        """Note that nothing was drafted: `late`, `refused` or `failed`."""
        totals = self._totals[call.caller]
        totals[outcome] += 1
        totals["wait"] += wait
        if outcome == "refused":
            self._of.pop(call.who, None)

    def gone(self, now: float, waiting: Collection[int]) -> list[int]:
        """Remove and return the senders that are silent, beside those whose calls wait."""
        silent = [who for who, account in self._of.items() if now - account.last_call > GONE and who not in waiting]
        for who in silent:
            del self._of[who]
        return silent

    def __len__(self) -> int:
        return len(self._of)

    def __iter__(self) -> Iterator[int]:
        return iter(self._of)

    @property
    def most(self) -> int:
        """Return N_max; `UNLIMITED` where no sender has said how long its tokens take alone. Does not mutate."""
        served = largest(self._of, 1.0)
        limit, service = self._limit(served), self._usual
        if math.isinf(limit) or not service:
            return UNLIMITED
        return len(served) + max(0, math.floor((limit - self._taken(served)) / service + 1e-9))

    def admits(self, who: int) -> bool:
        """Return whether a sender is served: one that is alone, one of the largest set whose objectives hold, and one
        more while there is room. Does not mutate."""
        if not self._of.keys() - {who}:
            return True
        if who in self._of:
            return who in largest(self._of, SLACK)
        ranks, own = _ranks(self._of), group_of_sender(who)
        rank = sum(group_of_sender(each) == own for each in self._of)
        rivals = {each: account for each, account in self._of.items() if ranks[each] <= rank}
        return self._taken(rivals) + self._usual <= self._limit(largest(rivals, 1.0)) + 1e-9

    @property
    def _usual(self) -> float:
        known = [each.service for each in self._of.values() if each.service]
        return sum(known) / len(known) if known else 0.0

    def _taken(self, whose: Iterable[int]) -> float:
        """Return these senders' part of the drafter's time in a round of all; of one that is new, a usual one's."""
        return sum(self._of[who].service or self._usual for who in whose)

    def _limit(self, whose: Iterable[int]) -> float:
        return min((self._of[who].objective for who in whose), default=math.inf)

    def figures(self) -> dict[str, Totals]:
        """Return totals by server. Does not mutate."""
        return {name: totals.copy() for name, totals in self._totals.items()}


def _ranks(accounts: Mapping[int, Account]) -> dict[int, int]:
    """Return by sender how many of the same server's senders come before it: those that take less."""
    met: Counter[int] = Counter()
    ranks = {}
    for who in sorted(accounts, key=lambda who: accounts[who].service):
        ranks[who] = met[group_of_sender(who)]
        met[group_of_sender(who)] += 1
    return ranks


def largest(accounts: Mapping[int, Account], slack: float) -> set[int]:
    """Return the largest set of senders whose objectives hold, times `slack`. For each that may be the strictest of the
    set: of those that are no stricter, the ones that take least, as many as it bears; each server's first before any's
    second."""
    able = {who: each for who, each in accounts.items() if each.service + each.away <= slack * each.objective + 1e-9}
    ranks, best = _ranks(able), set[int]()
    for bound in {slack * each.objective for each in able.values()}:
        left, found = bound + 1e-9, set()
        for who in sorted(able, key=lambda who: (ranks[who], able[who].service)):
            if slack * able[who].objective >= bound and able[who].service <= left:
                left -= able[who].service
                found.add(who)
        best = max(best, found, key=len)
    return best
