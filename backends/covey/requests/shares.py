"""Shares of tenants: start-time fair queueing over tokens decides whose request goes first.

From its admission a request costs its tenant the tokens that it may need, prompt and output, over the tenant's weight;
what it did not need is given back. The tenant that has had least goes first. A tenant that is new or comes back starts
little behind those that are admitted now: it cannot ask for what it left unused.

Knows no requests, only how many of each tenant there are.
"""

from __future__ import annotations

import math
from collections import Counter

from covey.contracts.tenants import TenantRules

QUANTUM = 1024.0  # tokens that tenants may differ by while urgency decides between them


class Shares:
    """Owns the accounts of the tenants that have requests here, running or waiting."""

    def __init__(self, rules: TenantRules) -> None:
        self.rules = rules
        self.waiting: Counter[str] = Counter()
        self.running: Counter[str] = Counter()
        self._had: dict[str, float] = {}
        self._level = 0.0  # what whoever was admitted last had had

    def came(self, tenant: str) -> None:
        """Count a request that waits."""
        self._had[tenant] = max(self._had.get(tenant, -math.inf), self._level - QUANTUM)
        self.waiting[tenant] += 1

    def admitted(self, tenant: str, tokens: int) -> None:
        """Charge a tenant for a waiting request that runs now, and may need so many tokens."""
        self._move(self.waiting, tenant)
        self.running[tenant] += 1
        self._level = max(self._level, self._had[tenant])
        self._had[tenant] += tokens / self.rules.weight(tenant)

    def returned(self, tenant: str, tokens: int) -> None:
        """Give back all that a running request was charged, because it waits again."""
        self._had[tenant] -= tokens / self.rules.weight(tenant)
        self._move(self.running, tenant)
        self.waiting[tenant] += 1

    def ended(self, tenant: str, unneeded: int) -> None:
        """Give back the tokens that a running request did not need, because it has ended."""
        self._had[tenant] -= unneeded / self.rules.weight(tenant)
        self._move(self.running, tenant)
        self._forget(tenant)

    def left(self, tenant: str) -> None:
        """Forget a waiting request."""
        self._move(self.waiting, tenant)
        self._forget(tenant)

    def rank(self, tenant: str) -> int:
        """Return a rank, the least for the tenant that has had least; urgency decides between equals. Does not
        mutate."""
        return int(self._had[tenant] // QUANTUM)

    def several(self) -> bool:
        """Return whether there are several tenants. Does not mutate."""
        return len(self._had) > 1

    def may_run(self, tenant: str) -> bool:
        return not self.rules.max_running or self.running[tenant] < self.rules.max_running

    def lacks(self, tenant: str) -> bool:
        """Return whether the tenant has fewer running requests than its share, by at least one. Does not mutate."""
        return self._beyond(tenant) <= -1

    def over(self, tenant: str) -> str | None:
        """Return the tenant that is to give up a running place for `tenant`, which has less than its share: the one
        with most beyond its share, if it keeps that; None if there is none. Does not mutate."""
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
