"""The accounts of a shared drafter: which senders are active, and how much each server was served."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator

from covey.contracts.types import DraftReply
from covey.drafters.calls import Call

GONE = 5.0  # seconds without a call after which a sender no longer counts as served

Totals = defaultdict[str, float]  # calls by outcome, and seconds


class Accounts:
    """Owns the time of each sender's last call, and totals by server. Called by one thread at a time."""

    def __init__(self) -> None:
        self._last_call: dict[int, float] = {}  # by sender
        self._totals: dict[str, Totals] = defaultdict(lambda: defaultdict(float))

    def called(self, call: Call) -> None:
        """Note that a call has come."""
        self._last_call[call.who] = call.arrived

    def served(self, call: Call, reply: DraftReply, seconds: float) -> None:
        """Note that the sender was drafted for, and its share of the drafter's time."""
        totals = self._totals[call.caller]
        totals["drafted"] += 1
        totals["service"] += seconds
        totals["wait"] += reply.wait_seconds
        totals["levels"] += call.depth

    def turned_away(self, call: Call, outcome: str, wait: float) -> None:
        """Note that nothing was drafted: `late` or `failed`."""
        totals = self._totals[call.caller]
        totals[outcome] += 1
        totals["wait"] += wait

    def gone(self, now: float, waiting: Collection[int]) -> list[int]:
        """Remove and return the silent senders, except those with a waiting call."""
        silent = [who for who, at in self._last_call.items() if now - at > GONE and who not in waiting]
        for who in silent:
            del self._last_call[who]
        return silent

    def __len__(self) -> int:
        return len(self._last_call)

    def __iter__(self) -> Iterator[int]:
        return iter(self._last_call)

    def figures(self) -> dict[str, Totals]:
        """Return totals by server. Does not mutate."""
        return {name: totals.copy() for name, totals in self._totals.items()}
