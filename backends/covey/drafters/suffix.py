"""Longest-suffix lookup in the request's own text and in the outputs of its tenant's recent requests.

The request's text has one suffix automaton. A tenant's outputs have two; when the newer one is full, the older one is
dropped. A place holds a state of each automaton and its number of matched tokens. The longest match gives the
continuations, by frequency.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence

from covey.contracts.profile import DrafterSettings
from covey.contracts.types import Open
from covey.drafters.automaton import ROOT, SuffixAutomaton
from covey.drafters.lookup import Child, Lookup, LookupDrafter, offer

LONGEST = 24  # tokens of the longest context
FULL_STORES = 8  # the most memory of all tenants, in full stores; beyond that the least recent tenant is evicted
LEAST = 64  # tokens whose memory even an empty store is counted as
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
        """`stored` is held while a store grows or a text is read. Only the thread in which stores grow asks for
        children, which takes no lock."""
        super().__init__()
        self.store = store
        self._stored = stored
        self._own = SuffixAutomaton()
        self._again = ROOT, 0  # state and length of the longest run of last tokens that occurred before
        self._followed: list[Match] = []  # the match of the last tokens in each of the store's automata

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
    """Return the match of the state's longest suffix that occurs in more places."""
    link = max(where.link[state], ROOT)
    return where, link, where.length[link]


def _cut(match: Match, longest: int) -> Match:
    """Return the match, shortened to `longest` tokens, in the state that holds it now: later text may have split the
    state."""
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
        self._stores: OrderedDict[str, Store] = OrderedDict()  # the most recent tenant is last
        self._size = 0  # of all stores
        self._stored = threading.Lock()  # one thread may read a text while another ends requests

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
        """Return the kept store of the tenant; keep this one if there is none."""
        if store.tenant not in self._stores:
            self._stores[store.tenant] = store
            self._size += store.size
        self._stores.move_to_end(store.tenant)
        return self._stores[store.tenant]

    def _forget(self) -> None:
        """Evict the least recent stores beyond the limit. Callers choose tenant names, so there may be any number."""
        most = FULL_STORES * (self._settings.suffix_store_tokens + LEAST)
        while self._size > most:
            self._size -= self._stores.popitem(last=False)[1].size
