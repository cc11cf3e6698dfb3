"""The choice among a server's targets for a request.

    named       the one that the request names
    its prompt  of those that have little more to do than the least busy, the one that was given the longest beginning
                of this prompt before, and so may have its KV
    load        among equals, the one with fewest requests open; then the one that was chosen least lately
    reach       one that could not be reached just now comes after all others

Prompts are remembered by digests of their beginnings alone. Tenants share no KV, so they share no beginnings. Knows no
Triton, and not what a target makes of a request.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from covey.contracts.errors import BadField

PIECE = 256  # bytes of a prompt: some 64 tokens of text, or 64 ids
LONGEST = 64  # pieces that are looked at
REMEMBERED = 4096  # beginnings of each target
SPREAD = 4  # open requests beyond the least busy target's that a known beginning is worth
AGAIN = 1.0  # seconds after which a target that could not be reached is one like the others


class Router:
    """Owns what each target has open and was given. Called by one thread at a time."""

    def __init__(self, names: Sequence[str], now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._away_until: dict[str, float] = {}
        self._open = dict.fromkeys(names, 0)
        self._given: dict[str, OrderedDict[bytes, None]] = {name: OrderedDict() for name in names}
        self._chosen = dict.fromkeys(names, 0)
        self._count = 0

    @property
    def open(self) -> dict[str, int]:
        """Return how many requests of each target have not ended. Does not mutate."""
        return dict(self._open)

    def order(self, named: str, prompt: bytes, tenant: bytes = b"") -> list[str]:
        """Return the targets that may serve the request, the best first. Raises BadField if `named` is not here. Does
        not mutate."""
        if named:
            if named not in self._open:
                raise BadField("target", named, ", ".join(self._open))
            return [named]
        beginnings = _beginnings(prompt, tenant)
        away = {name for name, until in self._away_until.items() if self._now() < until}
        least = min((count for name, count in self._open.items() if name not in away), default=0)

        def worth(name: str) -> tuple[bool, int, int, int]:
            near = self._open[name] <= least + SPREAD
            held = next((at for at, each in enumerate(beginnings) if each not in self._given[name]), len(beginnings))
            return name in away, -held if near else 1, self._open[name], self._chosen[name]

        return sorted(self._open, key=worth)

    def begun(self, name: str, prompt: bytes, tenant: bytes = b"") -> None:
        self._count += 1
        self._chosen[name] = self._count
        self._open[name] += 1
        given = self._given[name]
        for each in _beginnings(prompt, tenant):
            given[each] = None
            given.move_to_end(each)
        while len(given) > REMEMBERED:
            given.popitem(last=False)

    def ended(self, name: str) -> None:
        self._open[name] -= 1

    def lost(self, name: str) -> None:
        """Forget what a target held that is gone; its requests end by themselves."""
        self._given[name].clear()
        self._away_until[name] = self._now() + AGAIN


def _beginnings(prompt: bytes, tenant: bytes) -> list[bytes]:
    """Return a digest of each beginning that is a whole number of pieces long, the shortest first."""
    digest = hashlib.blake2b(tenant, digest_size=16)
    found = []
    for end in range(PIECE, min(len(prompt), PIECE * LONGEST) + 1, PIECE):
        digest.update(prompt[end - PIECE : end])
        found.append(digest.digest())
    return found
