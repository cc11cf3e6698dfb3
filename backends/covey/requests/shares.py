"""Shares of tenants: start-time fair queueing over tokens decides which tenant's request goes first.

At admission a request costs its tenant its prompt and its most output tokens, divided by the tenant's weight. When it
ends, unused tokens are refunded. The tenant that was charged least goes first. A new or returning tenant starts at most
`QUANTUM` below the current level: it cannot claim what it left unused.

Knows no requests, only how many each tenant has.
"""

from __future__ import annotations

import math
from collections import Counter

from covey.contracts.tenants import TenantRules

QUANTUM = 1024.0  # tenants whose charges differ by fewer tokens rank the same, and urgency decides


class Shares:
    """Owns the accounts of tenants with running or waiting requests."""

    def __init__(self, rules: TenantRules) -> None:
        self.rules = rules
        self.waiting: Counter[str] = Counter()
        self.running: Counter[str] = Counter()
        self._had: dict[str, float] = {}
        self._level = 0.0  # the highest charge of a tenant at an admission

    def came(self, tenant: str) -> None:
        """Count a new waiting request."""
        self._had[tenant] = max(self._had.get(tenant, -math.inf), self._level - QUANTUM)
        self.waiting[tenant] += 1

    def admitted(self, tenant: str, tokens: int) -> None:
        """Charge a tenant for a waiting request that runs now and may need `tokens` tokens."""
        self._move(self.waiting, tenant)
        self.running[tenant] += 1
        self._level = max(self._level, self._had[tenant])
        self._had[tenant] += tokens / self.rules.weight(tenant)

    def returned(self, tenant: str, tokens: int) -> None:
        """Refund all that a running request was charged, because it waits again."""
        self._had[tenant] -= tokens / self.rules.weight(tenant)
        self._move(self.running, tenant)
        self.waiting[tenant] += 1

    def ended(self, tenant: str, unneeded: int) -> None:
        """Refund the tokens that a running request did not need, because it has ended."""
        self._had[tenant] -= unneeded / self.rules.weight(tenant)
        self._move(self.running, tenant)
        self._forget(tenant)

    def left(self, tenant: str) -> None:
        """Forget a waiting request."""
        self._move(self.waiting, tenant)
        self._forget(tenant)

    def rank(self, tenant: str) -> int:
        """Return a rank, lowest for the tenant that was charged least; urgency decides between equals. Does not
        mutate."""
        return int(self._had[tenant] // QUANTUM)

    def several(self) -> bool:
        """Return whether there are several tenants. Does not mutate."""
        return len(self._had) > 1

    def may_run(self, tenant: str) -> bool:
        return not self.rules.max_running or self.running[tenant] < self.rules.max_running

    def lacks(self, tenant: str) -> bool:
        """Return whether the tenant has at least one running request less than its share. Does not mutate."""
        return self._beyond(tenant) <= -1

    def over(self, tenant: str) -> str | None:
        """Return the tenant that must give up a running place for `tenant`, or None. `tenant` must lack a place, and
        the other one, which exceeds its share most, must exceed it by at least one place. Does not mutate."""
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
