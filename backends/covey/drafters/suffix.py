"""Longest-suffix lookup in the request's own text and in what its tenant's recent requests put out.

The text is one suffix automaton; a tenant's outputs are two, of which the older is dropped when the newer is full. A
place is a state of each and how many last tokens it matches; the longest match says what may follow, by frequency.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from covey.drafters.automaton import ROOT, SuffixAutomaton
from covey.drafters.lookup import Child, Lookup, LookupDrafter, offer
from covey.profile import DrafterSettings
from covey.types import Open

Match = tuple[SuffixAutomaton, int, int]  # where, state, matched tokens


class Store:
    """A tenant's recent outputs, at most `limit` tokens."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.generations: tuple[SuffixAutomaton, ...] = ()

    def add(self, tokens: Sequence[int]) -> None:
        kept = tokens[-(self._limit // 2) :] if self._limit > 1 else ()
        if not kept:
            return
        newest = self.generations[0] if self.generations else None
        if newest is None or newest.read + len(kept) > self._limit // 2:
            newest = SuffixAutomaton()
            self.generations = (newest, *self.generations[:1])
        newest.restart()
        for token in kept:
            newest.append(token)


class SuffixLookup(Lookup):
    """One tag's text and its tenant's store."""

    def __init__(self, store: Store, longest: int) -> None:
        super().__init__()
        self.store = store
        self._longest = longest
        self._own = SuffixAutomaton()
        self._followed: list[Match] = []  # the place in each of the store's automata where the tokens end

    def clear(self) -> None:
        self.tokens.clear()
        self._own = SuffixAutomaton()
        self._followed = []

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._own.append(token)
        self.tokens.extend(tokens)
        followed = {id(where): (state, length) for where, state, length in self._followed}
        self._followed = []
        for where in self.store.generations:
            state, length = followed.get(id(where), (ROOT, 0))
            unread = tokens if id(where) in followed else self.tokens[-self._longest :]
            for token in unread:
                state, length = where.advance(state, length, token)
            self._followed.append((where, state, length))

    def place(self) -> Hashable:
        own = self._own
        suffix = max(own.link[own.last], ROOT)  # the longest that also ends elsewhere
        return ((own, suffix, own.length[suffix]), *self._followed)

    def children(self, place: Hashable, most: int) -> list[Child]:
        assert isinstance(place, tuple)
        shares: dict[int, float] = {}
        matches: list[Match] = [_cut(match, self._longest) for match in place]
        while len(shares) < most and (longest := max(length for _, _, length in matches)):
            counts: dict[int, int] = {}
            for at, (where, state, length) in enumerate(matches):
                if length == longest:
                    for token, after in where.steps[state].items():
                        counts[token] = counts.get(token, 0) + where.counts[after]
                    matches[at] = _shorter(where, state)
            offer(shares, sorted(counts.items(), key=lambda item: -item[1]), most)
        return [Child(token, share, tuple(_after(match, token) for match in place)) for token, share in shares.items()]


def _after(match: Match, token: int) -> Match:
    where, state, length = match
    return where, *where.advance(state, length, token)


def _shorter(where: SuffixAutomaton, state: int) -> Match:
    """The longest suffix of the state's runs that occurs in more places."""
    link = max(where.link[state], ROOT)
    return where, link, where.length[link]


def _cut(match: Match, longest: int) -> Match:
    """The same match, or where it is longer than `longest`, that much of it."""
    where, state, length = match
    while where.length[max(where.link[state], ROOT)] >= longest:
        state = where.link[state]
    return where, state, min(length, longest)


class SuffixDrafter(LookupDrafter):
    """Implements `covey.ports.Drafter`."""

    def __init__(self, settings: DrafterSettings, *, name: str, vocab_size: int) -> None:
        super().__init__(settings, name=name, vocab_size=vocab_size)
        self._settings = settings
        self._stores: dict[str, Store] = {}

    def opened(self, opening: Open) -> Lookup:
        store = self._stores.setdefault(opening.tenant, Store(self._settings.suffix_store_tokens))
        return SuffixLookup(store, self._settings.suffix_max)

    def closed(self, lookup: Lookup) -> None:
        assert isinstance(lookup, SuffixLookup)
        lookup.store.add([*lookup.tokens, *lookup.unread][lookup.num_prompt :])
