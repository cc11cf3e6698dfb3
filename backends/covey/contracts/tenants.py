"""The profile's rules about tenants: weights, limits and priorities."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

ANY = "*"  # every tenant without an entry
ENTRY = r"[^:]{0,256}:\d+(\.\d+)?"


@dataclass(frozen=True, slots=True)
class TenantRules:
    """The profile's rules about tenants; 0 is no limit."""

    weights: dict[str, float] = field(default_factory=dict)
    max_running: int = 0
    max_waiting: int = 0

    @classmethod
    def read(cls, entries: Iterable[str], max_running: int, max_waiting: int) -> TenantRules:
        return cls(numbers(entries), max_running, max_waiting)

    def weight(self, tenant: str) -> float:
        return self.weights.get(tenant, self.weights.get(ANY, 1.0))


def numbers(entries: Iterable[str]) -> dict[str, float]:
    """Return the numbers of entries `"NAME:NUMBER"` by name."""
    found = {}
    for entry in entries:
        assert re.fullmatch(ENTRY, entry), "the profile's pattern"
        name, _, number = entry.rpartition(":")
        found[name] = float(number)
    return found
