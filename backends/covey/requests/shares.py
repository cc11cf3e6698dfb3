"""Shares of tenants: what each has had of the server, and what it is due, by start-time fair queueing over tokens.

A request costs its tenant the tokens that it may need, prompt and output, over the tenant's weight, from when it is
admitted; what it did not need is given back. Whoever has had less goes first. Whoever comes back, or is new, starts
little behind those who are admitted now: what it did not ask for earlier it cannot ask for now.

Knows no requests, only how many of each tenant there are.
"""

from __future__ import annotations

import math
from collections import Counter

from covey.contracts.tenants import Rules

QUANTUM = 1024.0  # tokens that tenants may differ by while urgency decides between them


class Shares:
    """Owns the accounts of the tenants that have requests here, running or waiting."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.waiting: Counter[str] = Counter()
        self.running: Counter[str] = Counter()
        self._had: dict[str, float] = {}
        self._level = 0.0  # what whoever was admitted last had had

    def came(self, tenant: str) -> None:
        """A request of it waits."""
        self._had[tenant] = max(self._had.get(tenant, -math.inf), self._level - QUANTUM)
        self.waiting[tenant] += 1

    def admitted(self, tenant: str, tokens: int) -> None:
        """One that waited runs, and may need so many tokens."""
        self._move(self.waiting, tenant)
        self.running[tenant] += 1
        self._level = max(self._level, self._had[tenant])
        self._had[tenant] += tokens / self.rules.weight(tenant)

    def returned(self, tenant: str, tokens: int) -> None:
        """One that ran waits again; all that it was charged is given back."""
        self._had[tenant] -= tokens / self.rules.weight(tenant)
        self._move(self.running, tenant)
        self.waiting[tenant] += 1

    def ended(self, tenant: str, unneeded: int) -> None:
        """One that ran is gone, and did not need so many of its tokens."""
        self._had[tenant] -= unneeded / self.rules.weight(tenant)
        self._move(self.running, tenant)
        self._forget(tenant)

    def left(self, tenant: str) -> None:
        """One that waited is gone."""
        self._move(self.waiting, tenant)
        self._forget(tenant)

    def rank(self, tenant: str) -> int:
        """Sorts first who has had least. Equal for tenants between whom urgency decides. Does not mutate."""
        return int(self._had[tenant] // QUANTUM)

    def crowd(self) -> bool:
        """Whether there are several tenants. Does not mutate."""
        return len(self._had) > 1

    def may_run(self, tenant: str) -> bool:
        return not self.rules.max_running or self.running[tenant] < self.rules.max_running

    def lacks(self, tenant: str) -> bool:
        """Whether it has less than its share of the requests that run, by one at least. Does not mutate."""
        return self._beyond(tenant) <= -1

    def over(self, tenant: str) -> str | None:
        """Return the tenant that is to give one of its running places to `tenant`, which has less than its share: the
        one with most beyond its own share, if it keeps that; None if there is none. Does not mutate."""
        if not self.running or not self.lacks(tenant):
            return None
        most = max(self.running, key=self._beyond)
        return most if self._beyond(most) >= 1 else None

    def longest(self) -> str:
        """Return the tenant whose queue is the longest for its weight. Does not mutate."""
        return max(self.waiting, key=lambda each: self.waiting[each] / self.rules.weight(each))

    def _beyond(self, tenant: str) -> float:
        whole = sum(map(self.rules.weight, self._had))
        return self.running[tenant] - self.running.total() * self.rules.weight(tenant) / whole

    def _move(self, counts: Counter[str], tenant: str) -> None:
        counts[tenant] -= 1
        if not counts[tenant]:
            del counts[tenant]

    def _forget(self, tenant: str) -> None:
        if tenant not in self.waiting and tenant not in self.running:
            del self._had[tenant]
