"""Estimates how many drafts of each drafter a request will accept.

    rate     of a request, drafter and draft position: sigmoid(logit(rate of its neighbours) + shift)
    shift    of the request and drafter, relative to its neighbours: first how likely the drafter finds its prompt,
             then its own rounds, drafted or replayed

The neighbours are the tenant's latest requests with similar prompts (`neighbours`). Their rates lean on those of all
the tenant's requests. A rate counts rounds, not single hits, because rounds start after misses and hits cluster. Only a
request's last rounds count, so a text may change its domain. Tenants do not learn from one another.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from covey.contracts.types import Ints
from covey.planner.drafters.neighbours import Neighbours
from covey.planner.drafters.replay import Replay
from covey.requests.active import ActiveRequest

Array = npt.NDArray[np.float64]
Places = npt.NDArray[np.intp]

FIRST = 0.6  # the first position's rate before anything is seen
LEAN = 4.0  # rounds that the tenant's rates are worth to neighbours, and the position before to the tenant
TENANT = 2000.0  # rounds of a tenant that count
OWN = 48.0  # drafts of a request that count
PRIOR = 6.0  # drafts that the neighbours' rates are worth to a request
SPREAD = 0.5  # deviation of requests from their neighbours, in log odds
LIKELIHOOD = 0.7  # log odds of a hit per nat of a prompt token; .69 to .75 on earlier weights of the bundled pair
ALIKE = 4.0  # prompts after which a drafter's own mean counts as much as the mean over drafters
TENANTS = 64
EDGE = 0.02  # distance that rates keep from 0 and 1


class _Tenant:
    """The counts over all requests of a tenant, and its latest requests."""

    def __init__(self, drafters: int, depth: int) -> None:
        self.neighbours = Neighbours(drafters, depth)
        self._counts = np.zeros((2, drafters, depth))  # drafts tried, accepted

    def add(self, numbers: Places, drafters: Ints, looked: Array, accepted: Array) -> None:
        """Count rounds of requests: see `Neighbours.add`."""
        for counts, more in zip(self._counts, (looked, accepted)):
            np.add.at(counts, drafters, more)
        self._counts *= (TENANT / np.maximum(self._counts[0, :, 0], TENANT))[:, None]
        self.neighbours.add(numbers, drafters, looked, accepted)

    def rates(self) -> Array:
        """Return acceptance rates as [drafters, depth]. Does not mutate."""
        looked, accepted = self._counts
        rates: Array = np.empty_like(looked)
        before = np.full(len(looked), FIRST)
        for at in range(looked.shape[1]):
            rates[:, at] = before = (accepted[:, at] + LEAN * before) / (looked[:, at] + LEAN)
        return rates


@dataclass(eq=False)
class Belief:
    """One request's place in the table, tenant, number among neighbours, and drafter."""

    place: int
    tenant: _Tenant
    number: int
    replays: list[Replay]  # one of each drafter
    drafter: int = -1  # the one in use
    why: str = ""


class _Table:
    """One row of numbers for each running request. A row is reused after its request is gone."""

    def __init__(self, drafters: int, depth: int) -> None:
        # By request and drafter: drafts tried, accepted, and expected at the neighbours' rates; `ends`, up to where the
        # text was drafted or replayed; and the mean log q of a prompt token, if the drafter has judged the prompt.
        # From the last look at the neighbours: rounds, log odds by the prompt, rates by position.
        numbers = ("looked", "accepted", "expected", "likely", "rounds", "hint")
        fields = [*((name, np.float64, drafters) for name in numbers), ("rates", np.float64, (drafters, depth))]
        self._new = np.zeros(1, [*fields, ("ends", np.int64, drafters), ("judged", np.bool_, drafters)])
        self._new["rates"] = FIRST
        self.rows = np.repeat(self._new, 64)
        self.free = list(range(64))

    def take(self) -> int:
        """Return a free row, reset for a new request."""
        if not self.free:
            self.free += range(len(self.rows), 2 * len(self.rows))
            self.rows = np.concatenate([self.rows, self.rows])
        place = self.free.pop()
        self.rows[place] = self._new[0]
        return place


class Beliefs:
    """Owns the tenants' counts and a table with a row for each running request (`ActiveRequest.belief`)."""

    def __init__(self, names: Sequence[str], depth: int) -> None:
        self._index = {name: drafter for drafter, name in enumerate(names)}
        self._depth = depth
        self.longest = np.full(len(names), np.inf)  # the longest text that each drafter can hold
        self._table = _Table(len(names), depth)
        self._tenants: OrderedDict[str, _Tenant] = OrderedDict()

    def of(self, active: ActiveRequest) -> Belief:
        """Return a request's belief; create it on first use."""
        belief: Belief | None = active.belief
        if belief is None:
            tenant = self._tenant(active.request.tenant)
            number = tenant.neighbours.join(active.request.prompt)
            replays = [Replay(self._depth) for _ in self._index]
            belief = active.belief = Belief(self._table.take(), tenant, number, replays)
            weakref.finalize(belief, self._table.free.append, belief.place).atexit = False
            self.look_around([active])
        return belief

    def places(self, rows: Sequence[ActiveRequest]) -> Places:
        return np.array([self.of(active).place for active in rows], np.intp)

    def ends(self, rows: Sequence[ActiveRequest]) -> npt.NDArray[np.int64]:
        """Return [rows, drafters]: the position up to which each drafter's drafts of a text are known or replayed."""
        places = self.places(rows)  # first, since new requests may grow the table
        ends: npt.NDArray[np.int64] = self._table.rows["ends"][places]
        return ends

    def holds(self, rows: Sequence[ActiveRequest]) -> npt.NDArray[np.bool_]:
        """Return [rows, drafters]: whether a drafter has room for a text and a draft."""
        held: npt.NDArray[np.bool_] = np.array([active.num_tokens for active in rows])[:, None] < self.longest
        return held

    def knows_prompt(self, active: ActiveRequest) -> bool:
        """Return whether any drafter has judged the request's prompt."""
        return bool(self._table.rows["judged"][self.of(active).place].any())

    def look_around(self, rows: Sequence[ActiveRequest]) -> None:
        """Refresh the table from the requests' neighbours."""
        by_tenant: dict[int, list[Belief]] = {}
        for active in rows:
            belief = self.of(active)
            by_tenant.setdefault(id(belief.tenant), []).append(belief)
        table = self._table.rows
        for beliefs in by_tenant.values():
            tenant, places = beliefs[0].tenant, [belief.place for belief in beliefs]
            counts, likely = tenant.neighbours.of([belief.number for belief in beliefs])
            looked, accepted = counts[:, 0], counts[:, 1]
            table["rates"][places] = np.clip((accepted + LEAN * tenant.rates()) / (looked + LEAN), EDGE, 1.0 - EDGE)
            table["rounds"][places] = looked[:, :, 0]
            judged, own = table["judged"][places], table["likely"][places]
            mean = own.sum(axis=1, where=judged) / np.maximum(judged.sum(axis=1), 1)
            usual = (likely[:, 0] * likely[:, 1] + ALIKE * mean[:, None]) / (likely[:, 0] + ALIKE)
            table["hint"][places] = np.where(judged, LIKELIHOOD * (own - usual), 0.0)

    def drafted(self, rows: Sequence[ActiveRequest], drafters: Ints, looked: Ints, accepted: Ints) -> None:
        """Count a round in which these drafters drafted for the requests. The texts must contain its tokens."""
        for active, drafter in zip(rows, drafters.tolist()):
            belief = self.of(active)
            belief.replays[drafter].skip(active.num_tokens)
            self._table.rows["ends"][belief.place, drafter] = belief.replays[drafter].end
        reached = np.arange(self._depth)
        self._record(rows, drafters, 1.0 * (reached < looked[:, None]), 1.0 * (reached < accepted[:, None]))

    def take_judgements(self, rows: Sequence[ActiveRequest]) -> None:
        """Count the drafters' judgements of the requests' texts since the last call."""
        told, drafters, counts = [], [], []
        for active in rows:
            belief = self.of(active)
            for name, judged in active.judgements.items():
                drafter = self._index[name]
                replay = belief.replays[drafter]
                if judged.end > replay.end:
                    rounds = list(replay.take(judged.start, judged.hits))
                    self._table.rows["ends"][belief.place, drafter] = replay.end
                    if rounds:
                        told.append(active)
                        drafters.append(drafter)
                        counts.append([_reached(each, self._depth) for each in zip(*rounds)])
                if judged.prompt_tokens and not self._table.rows["judged"][belief.place, drafter]:
                    likely = judged.prompt_log_q / judged.prompt_tokens
                    self._table.rows["judged"][belief.place, drafter] = True
                    self._table.rows["likely"][belief.place, drafter] = likely
                    belief.tenant.neighbours.judged(belief.number, drafter, likely)
        if told:
            looked, accepted = np.moveaxis(np.array(counts, np.float64), 1, 0)
            self._record(told, np.array(drafters, np.int32), looked, accepted)

    def expected(self, rows: Sequence[ActiveRequest], *deviations: float | Array) -> list[Array]:
        """Return the expected tokens of a round as [rows, drafters, depth + 1], plain decoding first. There is one
        array for each of `deviations`: the number of deviations above the likeliest, for all rows or by row. A drafter
        without room for a text drafts nothing."""
        names = ("rates", "looked", "accepted", "expected", "hint", "rounds")
        places = self.places(rows)  # first, since new requests may grow the table
        mine = self._table.rows[places]
        rates, looked, accepted, expected, hint, rounds = (mine[name] for name in names)
        usual = np.where(looked > 0, expected / np.maximum(looked, 1e-9), rates[:, :, 0])
        usual = np.clip(_sigmoid(_logit(usual) + hint), EDGE, 1.0 - EDGE)
        own = np.clip((accepted + PRIOR * usual) / (looked + PRIOR), EDGE, 1.0 - EDGE)
        shift = hint + _logit(own) - _logit(usual)
        doubt = np.sqrt(1.0 / ((rounds + LEAN) * own * (1.0 - own)) + SPREAD**2 * PRIOR / (looked + PRIOR))
        odds, full, answers = _logit(rates), ~self.holds(rows), []
        for each in deviations:
            shifted = shift + np.reshape(each, (-1, 1)) * doubt
            tokens = np.ones((*rates.shape[:2], self._depth + 1))
            tokens[:, :, 1:] += np.cumsum(np.cumprod(_sigmoid(odds + shifted[:, :, None]), axis=2), axis=2)
            tokens[full] = 1.0
            answers.append(tokens)
        return answers

    def _tenant(self, name: str) -> _Tenant:
        tenant = self._tenants.get(name)
        if tenant is None:
            if len(self._tenants) >= TENANTS:
                self._tenants.popitem(last=False)
            tenant = self._tenants[name] = _Tenant(len(self._index), self._depth)
        self._tenants.move_to_end(name)
        return tenant

    def _record(self, rows: Sequence[ActiveRequest], drafters: Ints, looked: Array, accepted: Array) -> None:
        """Count the rounds that reached a draft's position, and those that accepted it, as [rows, depth]. A pair of
        request and drafter must not occur twice."""
        beliefs = [self.of(active) for active in rows]
        table, at = self._table.rows, (self.places(rows), drafters)
        total = looked.sum(axis=1)
        keep = np.maximum(0.0, 1.0 - total / OWN)
        table["looked"][at] = keep * table["looked"][at] + total
        table["accepted"][at] = keep * table["accepted"][at] + accepted.sum(axis=1)
        table["expected"][at] = keep * table["expected"][at] + (looked * table["rates"][at]).sum(axis=1)
        tenants = np.array([id(belief.tenant) for belief in beliefs])
        numbers = np.array([belief.number for belief in beliefs])
        for first in np.unique(tenants, return_index=True)[1].tolist():
            mine = tenants == tenants[first]
            beliefs[first].tenant.add(numbers[mine], drafters[mine], looked[mine], accepted[mine])


def _reached(counts: Sequence[int], depth: int) -> Array:
    """Return how many counts are at least 1, 2, ... depth."""
    reached: Array = (np.asarray(counts)[:, None] > np.arange(depth)).sum(axis=0).astype(np.float64)
    return reached


def _logit(rates: Array) -> Array:
    odds: Array = np.log(rates / (1.0 - rates))
    return odds


def _sigmoid(odds: Array) -> Array:
    rates: Array = 1.0 / (1.0 + np.exp(-odds))
    return rates
