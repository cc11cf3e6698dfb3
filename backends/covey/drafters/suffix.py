"""Longest-suffix lookup in the request's own text and in what its tenant's recent requests put out.

The text is one suffix automaton; a tenant's outputs are two, of which the older is dropped when the newer is full. A
place is a state of each and how many last tokens it matches; the longest match says what may follow, by frequency.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence

from covey.contracts.profile import DrafterSettings
from covey.contracts.types import Open
from covey.drafters.automaton import ROOT, SuffixAutomaton
from covey.drafters.lookup import Child, Lookup, LookupDrafter, offer

LONGEST = 24  # tokens of the longest context that is looked up
FULL_STORES = 8  # that all tenants' may be as large as together; of more, whoever asked longest ago is forgotten
LEAST = 64  # tokens that a store takes the memory of at least
Match = tuple[SuffixAutomaton, int, int]  # where, state, matched tokens


class Store:
    """A tenant's recent outputs, at most `limit` tokens."""

    def __init__(self, tenant: str, limit: int) -> None:
        self.tenant, self._limit = tenant, limit
        self.generations: tuple[SuffixAutomaton, ...] = ()

    @property
    def size(self) -> int:
        return LEAST + sum(each.read for each in self.generations)

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
    """The text of one tag and the store of its tenant."""

    def __init__(self, store: Store, stored: threading.Lock) -> None:
        """`stored` is held while any store is read or added to."""
        super().__init__()
        self.store = store
        self._stored = stored
        self._own = SuffixAutomaton()
        self._again = ROOT, 0  # where the longest of the last tokens are that also stand before, as state and length
        self._followed: list[Match] = []  # the place in each of the store's automata where the tokens end

    def clear(self) -> None:
        self.tokens.clear()
        self._own = SuffixAutomaton()
        self._again = ROOT, 0
        self._followed = []

    def extend(self, tokens: Sequence[int]) -> None:
        own, (again, length) = self._own, self._again
        for token in tokens:
            again, length = own.advance(again, length, token)
            own.append(token)
            _, again, length = _cut((own, again, length), LONGEST)
        self._again = again, length
        self.tokens.extend(tokens)
        with self._stored:
            self._follow(tokens)

    def _follow(self, tokens: Sequence[int]) -> None:
        followed = {id(where): (state, length) for where, state, length in self._followed}
        self._followed = []
        for where in self.store.generations:
            state, length = followed.get(id(where), (ROOT, 0))
            unread = tokens if id(where) in followed else self.tokens[-LONGEST:]
            for token in unread:
                _, state, length = _cut((where, *where.advance(state, length, token)), LONGEST)
            self._followed.append((where, state, length))

    def place(self) -> Hashable:
        return ((self._own, *self._again), *self._followed)

    def children(self, place: Hashable, most: int) -> list[Child]:
        assert isinstance(place, tuple)
        shares: dict[int, float] = {}
        matched = 0
        place = tuple(_cut(match, LONGEST) for match in place)
        matches: list[Match] = [*place]
        while len(shares) < most and (longest := max(length for _, _, length in matches)):
            matched = matched if shares else longest
            counts: dict[int, int] = {}
            for at, (where, state, length) in enumerate(matches):
                if length == longest:
                    for token, after in where.steps[state].items():
                        counts[token] = counts.get(token, 0) + where.counts[after]
                    matches[at] = _shorter(where, state)
            offer(shares, sorted(counts.items(), key=lambda item: -item[1]), most)
        return [
            Child(token, share, tuple(_after(match, token) for match in place), matched)
            for token, share in shares.items()
        ]


def _after(match: Match, token: int) -> Match:
    where, state, length = match
    return where, *where.advance(state, length, token)


def _shorter(where: SuffixAutomaton, state: int) -> Match:
    """Return the longest suffix of the state's runs that occurs in more places."""
    link = max(where.link[state], ROOT)
    return where, link, where.length[link]


def _cut(match: Match, longest: int) -> Match:
    """Return the same match, or where it is longer than `longest`, that much of it, in the state that holds it now:
    what was read since may have split that."""
    where, state, length = match
    length = min(length, longest)
    while state > ROOT and where.length[where.link[state]] >= length:
        state = where.link[state]
    return where, state, length


class SuffixDrafter(LookupDrafter):
    """Implements `covey.contracts.ports.Drafter`."""

    def __init__(self, settings: DrafterSettings, *, name: str, vocab_size: int) -> None:
        super().__init__(settings, name=name, vocab_size=vocab_size)
        self._settings = settings
        self._stores: OrderedDict[str, Store] = OrderedDict()  # the tenant whose request ended last is the last
        self._size = 0  # of all of them
        self._stored = threading.Lock()  # a text may be read in another thread than that in which others end

    def opened(self, opening: Open) -> Lookup:
        store = self._stores.get(opening.tenant) or Store(opening.tenant, self._settings.suffix_store_tokens)
        return SuffixLookup(self._kept(store), self._stored)

    def closed(self, lookup: Lookup) -> None:
        assert isinstance(lookup, SuffixLookup)
        store = self._kept(lookup.store)
        before = store.size
        with self._stored:
            store.add([*lookup.tokens, *lookup.unread][lookup.num_prompt :])
        self._size += store.size - before
        self._forget()

    def _kept(self, store: Store) -> Store:
        """Return the store of its tenant, which this one becomes where there is none."""
        if store.tenant not in self._stores:
            self._stores[store.tenant] = store
            self._size += store.size
        self._stores.move_to_end(store.tenant)
        return self._stores[store.tenant]

    def _forget(self) -> None:
        """A tenant's name is whatever its callers say: anybody can be any number of them."""
        most = FULL_STORES * (self._settings.suffix_store_tokens + LEAST)
        while self._size > most:
            self._size -= self._stores.popitem(last=False)[1].size
