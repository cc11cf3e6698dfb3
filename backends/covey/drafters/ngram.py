"""Prompt lookup: drafts the tokens that followed the last n tokens earlier in the text, for the longest n that occurs.

Each token updates one count for every n up to the longest, so no search is needed. The most frequent continuation comes
first, the most recent among equals.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from covey.contracts.profile import DrafterSettings
from covey.contracts.types import Open
from covey.drafters.lookup import Child, Lookup, LookupDrafter, offer

Run = tuple[int, ...]


class NgramLookup(Lookup):
    """Counts of one tag's continuations. A place is a tuple of the last tokens, up to the longest n."""

    def __init__(self, longest: int) -> None:
        super().__init__()
        self._longest = longest
        self._after: dict[Run, dict[int, int]] = {}  # the continuations of each run of n tokens, the latest last

    def clear(self) -> None:
        self.tokens.clear()
        self._after.clear()

    def extend(self, tokens: Sequence[int]) -> None:
        text = self.tokens
        for token in tokens:
            recent = tuple(text[-self._longest :])
            for start in range(len(recent)):
                counts = self._after.setdefault(recent[start:], {})
                counts[token] = counts.pop(token, 0) + 1
            text.append(token)

    def place(self) -> Hashable:
        return tuple(self.tokens[-self._longest :])

    def children(self, place: Hashable, most: int) -> list[Child]:
        assert isinstance(place, tuple)
        keep = self._longest - 1
        recent = place[-keep:] if keep else ()
        shares: dict[int, float] = {}
        matched = 0
        for length, counts in self._by_length(place):
            matched = matched or length
            offer(shares, counts, most)
            if len(shares) >= most:
                break
        return [Child(token, share, (*recent, token), matched) for token, share in shares.items()]

    def _by_length(self, place: Run) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        """Yield n, and the tokens that followed the place's last n tokens with their counts, the longest n first. The
        most frequent tokens come first, then the latest."""
        for start in range(len(place)):
            counts = self._after.get(place[start:])
            if counts:
                by_count = sorted(counts.items(), key=lambda item: item[1])  # stable: the latest is last
                yield len(place) - start, by_count[::-1]


class NgramDrafter(LookupDrafter):
    """Implements `covey.contracts.ports.Drafter`."""

    def __init__(self, settings: DrafterSettings, *, name: str, vocab_size: int) -> None:
        super().__init__(settings, name=name, vocab_size=vocab_size)
        self._longest = settings.ngram_max

    def opened(self, opening: Open) -> Lookup:  # noqa: ARG002  # tags share nothing
        return NgramLookup(self._longest)

    def closed(self, lookup: Lookup) -> None:
        """Keep nothing."""
