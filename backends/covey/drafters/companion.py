"""What a text repeats, looked up beside all drafters, in the engine's own process.

A lookup costs so little that it need not be chosen among drafters and tried: at each token that a request emits it is
known whether what would have been offered was right, and so, before a round is planned, how many drafts of this very
text will be accepted (`hit_rates`). The planner takes the offer where that is worth more than what it would do
otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

from covey.contracts.types import Offer, Open
from covey.drafters.hit_rates import HitRates
from covey.drafters.lookup import Child, LookupDrafter

MOST = 4096  # last tokens that are read of a prompt, and kept of an output: each takes about 1 KiB of memory
MANY = 16  # tokens: of more at once it is not asked what would have been offered
LEAST = 0.2  # how likely the whole of a chain must be


class LookedUp:
    """Implements `covey.contracts.ports.Companion`."""

    def __init__(self, drafter: LookupDrafter, opening: Open, usual: HitRates) -> None:
        """`usual` are the rates of all of the drafter's texts."""
        self._drafter = drafter
        self.lookup = drafter.open(opening)
        dropped = max(0, len(self.lookup.unread) - MOST)
        del self.lookup.unread[:dropped]
        self.lookup.num_prompt = max(0, self.lookup.num_prompt - dropped)
        self.rates = HitRates(usual)
        self.next: Child | None = None

    def open(self) -> None:
        """Read the prompt. What others put out is not looked at: this thread may not be the one that changes it."""
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

    def offer(self, behind: int, most: int) -> Offer:
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
        return Offer(behind, tokens, expected)

    def end(self) -> None:
        self.lookup.num_prompt = max(self.lookup.num_prompt, self.lookup.num_tokens - MOST)
        self._drafter.closed(self.lookup)

    def _look(self) -> None:
        self.next = next(iter(self.lookup.children(self.lookup.place(), 1)), None)
