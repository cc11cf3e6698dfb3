"""Offers drafts by looking up repetitions in a request's text, in the engine's own process.

A lookup is so cheap that it runs for each request, in addition to drafters. Each emitted token shows whether the last
offer was right. So `hit_rates` tells how many drafts of this text will be accepted, before a round is planned. The
planner takes an offer that is worth more than its own plan.
"""

from __future__ import annotations

from collections.abc import Sequence

from covey.contracts.types import Offer, Open
from covey.drafters.hit_rates import HitRates
from covey.drafters.lookup import Child, LookupDrafter

MOST = 4096  # last tokens read of a prompt, and kept of an output: each takes about 1 KiB of memory
MANY = 16  # if more tokens come at once, their offers are not checked
LEAST = 0.1  # the least probability that a whole chain is right


class LookedUp:
    """Implements `covey.contracts.ports.Companion`."""

    def __init__(self, drafter: LookupDrafter, opening: Open, usual: HitRates) -> None:
        """`usual` are the rates over all of the drafter's texts."""
        self._drafter = drafter
        self.lookup = drafter.open(opening)
        dropped = max(0, len(self.lookup.unread) - MOST)
        del self.lookup.unread[:dropped]
        self.lookup.num_prompt = max(0, self.lookup.num_prompt - dropped)
        self.rates = HitRates(usual)
        self.next: Child | None = None

    def open(self) -> None:
        """Read the prompt without looking up an offer. A lookup reads other requests' outputs without a lock, and
        another thread may change them meanwhile."""
        self.lookup.extend(self.lookup.unread)
        self.lookup.unread.clear()

    def read(self, tokens: Sequence[int]) -> None:
        if len(tokens) > MANY:
            self.lookup.extend(tokens[:-1])
            self.next, tokens = None, tokens[-1:]
        for token in tokens:
            if self.next is not None:
                self.rates.add(self.next.matched, self.next.token == token)
            self.lookup.extend((token,))
            self._look()
        if not tokens:
            self._look()

    def offer(self, num_tokens: int, most: int) -> Offer:
        """Return a chain of at most `most` tokens. Does not mutate."""
        child, likely, accepted = self.next, 1.0, 0.0
        tokens, expected = list[int](), list[float]()
        while len(tokens) < most and child is not None and child.token not in self.lookup.banned:
            likely *= self.rates.of(child.matched)
            if likely < LEAST:
                break
            accepted += likely
            tokens.append(child.token)
            expected.append(accepted)
            child = next(iter(self.lookup.children(child.place, 1)), None)
        return Offer(num_tokens, tokens, expected)

    def end(self) -> None:
        self.lookup.num_prompt = max(self.lookup.num_prompt, self.lookup.num_tokens - MOST)
        self._drafter.closed(self.lookup)

    def _look(self) -> None:
        self.next = next(iter(self.lookup.children(self.lookup.place(), 1)), None)
