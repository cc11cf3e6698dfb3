"""Simulates many replicas in virtual time: routers before simulated targets, which die and come back.

A replica has the rounds of a cost table (`covey_client.star.capacity`): its rows share them evenly, a prompt that is
read stops them for as long as it makes passes longer, and a prefix that it keeps need not be read. Routers know the
replicas by reports, by what they themselves have sent since, and by connections that are refused. A stream whose
replica dies goes on elsewhere: prompt and tokens are read again, as a client that resumes has them read. Nothing here
was measured.
"""

from __future__ import annotations

import heapq
import math
import random
import time
from dataclasses import dataclass

import numpy as np

from covey_client.star.capacity import LatencyGoal, TargetLoad
from loadtest.simulation.replica import LONGEST, FleetStream, Pace, Replica
from loadtest.simulation.routing import Routing, View

HOP = 0.003  # seconds that a request takes through a router; a handle call of Ray Serve was measured at 2.8 to 3.4 ms
REST = 0.25  # ... and that a client rests before it goes on with a stream that broke
ARRIVE, END, REPORT, DIE, COME = range(5)


@dataclass(frozen=True)
class Fleet:
    """Describes what is played, in seconds; what is assumed of routers is said here."""

    server: TargetLoad  # one replica, and the lengths of what it is asked beside the prefix
    replicas: int
    rate: float  # requests a second, of each replica on average
    objective: LatencyGoal
    seconds: float
    warm: float  # of which the first do not count
    prefix: int = 512  # tokens that a prompt begins with
    prefixes: int = 8  # different ones for each replica
    popularity: float = 0.8  # Zipf's exponent over them
    kept: int = 64  # prefixes that a replica's memory holds beside what runs
    routers: int = 1
    work: float = 0.001  # for which a request occupies its router: assumed
    index: float = 0.0  # ... and the actor in which all routers keep where prefixes are; 0: there is none
    report: float = 1.0  # between reports of queues and deaths
    life: float = math.inf  # mean, of a replica
    away: float = 30.0  # until one that died is back, with an empty cache
    outage: float = 0.0  # share of all replicas that die at once, in the middle of what counts


@dataclass(slots=True)
class FleetPlayed:
    """Holds the figures of the time that counts."""

    asked: int = 0
    goodput: float = 0.0  # tokens a second of streams that kept to the objective
    offered: float = 0.0
    attained: float = 0.0  # share of streams
    ttft: tuple[float, float] = (math.nan, math.nan)  # median and p99; infinite where so many had none
    hits: float = 0.0  # share of prefixes that were kept where the request went
    broken: int = 0  # streams whose replica died
    unended: int = 0  # that had not ended when as much time again was over
    refused: int = 0  # sent to a replica that was not there
    deepest: int = 0  # requests that one replica had at the most
    mean: float = 0.0  # ... and replicas on average
    wait: float = 0.0  # p99, of routers and index
    decision: float = 0.0  # real seconds that the policy's code took for one request


class Game:
    """Plays one run, event by event."""

    def __init__(self, fleet: Fleet, routing: Routing, seed: int) -> None:
        self._fleet, self._routing = fleet, routing
        self._rng = random.Random(seed)
        self._draws = np.random.default_rng(seed)
        self._replicas = [Replica() for _ in range(fleet.replicas)]
        self._views = [View(fleet.replicas, random.Random(f"{seed} {index}")) for index in range(fleet.routers)]
        self._busy = [0.0] * fleet.routers  # until when each router is
        self._index = 0.0
        self._queue = np.zeros(fleet.replicas, np.int64)
        self._asked: list[FleetStream] = []
        self._events: list[tuple[float, int, int, int]] = []
        self._pace = Pace(fleet.server)
        self._hits = self._looked = 0
        self._waits: list[float] = []
        self._deciding = 0.0
        self._decided = 0
        self.played = FleetPlayed()

    def play(self) -> FleetPlayed:
        fleet = self._fleet
        self._offer()
        for at in np.arange(0.0, fleet.seconds, fleet.report).tolist():
            self._push(at, REPORT, 0)
        self._fail()
        handlers = (self._arrive, self._end, self._report, self._die, self._come)
        until = 2 * fleet.seconds
        while self._events:
            now, kind, which, version = heapq.heappop(self._events)
            if now > until:
                break
            if kind != END or version == self._replicas[which].version:
                handlers[kind](now, which)
        return self._summary()

    def _offer(self) -> None:
        fleet, server = self._fleet, self._fleet.server
        count = self._draws.poisson(fleet.rate * fleet.replicas * fleet.seconds)
        times = np.sort(self._draws.uniform(0, fleet.seconds, count))
        sigma = server.spread
        prompts = server.prompt * self._draws.lognormal(-(sigma**2) / 2, sigma, count)
        outputs = np.minimum(LONGEST, server.output * self._draws.lognormal(-(sigma**2) / 2, sigma, count))
        weights = np.arange(1, fleet.prefixes * fleet.replicas + 1) ** -fleet.popularity
        prefixes = self._draws.choice(len(weights), count, p=weights / weights.sum())
        rows = zip(prefixes.tolist(), prompts.tolist(), outputs.tolist(), times.tolist())
        self._asked = [FleetStream(prefix, int(1 + p), 1 + o, at, 1 + o) for prefix, p, o, at in rows]
        self._events = [(at, ARRIVE, key, 0) for key, at in enumerate(times.tolist())]

    def _fail(self) -> None:
        fleet = self._fleet
        middle = (fleet.warm + fleet.seconds) / 2
        for replica in range(fleet.replicas):
            at = fleet.life * self._rng.expovariate(1.0)
            if at < fleet.seconds:
                self._push(at, DIE, replica)
        for replica in self._rng.sample(range(fleet.replicas), round(fleet.outage * fleet.replicas)):
            self._push(middle, DIE, replica)

    def _push(self, at: float, kind: int, which: int, version: int = 0) -> None:
        heapq.heappush(self._events, (at, kind, which, version))

    def _arrive(self, now: float, key: int) -> None:
        """Have a request arrive at a router. What waits there comes late to its first token, and to the replica as if
        it had not waited."""
        fleet, asked = self._fleet, self._asked[key]
        router = self._rng.randrange(fleet.routers)
        view = self._views[router]
        free = self._busy[router] = max(self._busy[router], now) + fleet.work
        if fleet.index:
            free = self._index = max(self._index, free) + fleet.index
        self._waits.append(free - now)
        began = time.perf_counter()
        chosen = self._routing.choose(view, asked.prefix)
        self._deciding += time.perf_counter() - began
        self._decided += 1
        replica = self._replicas[chosen]
        if not replica.there:
            view.gone(chosen)
            self.played.refused += 1
            self._push(now + HOP, ARRIVE, key)
            return
        self._routing.routed(asked.prefix, chosen)
        view.queue[chosen] += 1
        self._queue[chosen] += 1
        self.played.deepest = max(self.played.deepest, int(self._queue[chosen]))
        asked.replica, asked.router = chosen, router
        replica.advance(now, self._pace)
        if len(replica.rows) < fleet.server.rows:
            self._admit(replica, now, key, free - now + HOP)
        else:
            replica.waiting.append(key)
        self._schedule(chosen, replica)

    def _admit(self, replica: Replica, now: float, key: int, late: float = 0.0) -> None:
        """Admit a request; `late` is how long it waited before the replica."""
        asked, fleet = self._asked[key], self._fleet
        self._looked += 1
        kept = replica.keeps(asked.prefix, fleet.kept)
        self._hits += kept
        first = replica.begin(key, asked, self._pace, 0 if kept else fleet.prefix)
        asked.first = min(asked.first, now + late + first)

    def _schedule(self, which: int, replica: Replica) -> None:
        replica.version += 1
        if replica.rows:
            self._push(replica.next_end(self._pace), END, which, replica.version)

    def _end(self, now: float, which: int) -> None:
        replica = self._replicas[which]
        replica.advance(now, self._pace)
        _, key = heapq.heappop(replica.rows)
        asked = self._asked[key]
        asked.ended = now
        self._queue[which] -= 1
        self._views[asked.router].queue[which] -= 1
        if replica.waiting:
            self._admit(replica, now, replica.waiting.popleft())
        self._schedule(which, replica)

    def _report(self, _now: float, _which: int) -> None:
        there = np.fromiter((replica.there for replica in self._replicas), bool, len(self._replicas))
        for view in self._views:
            view.told(self._queue, there)

    def _die(self, now: float, which: int) -> None:
        replica = self._replicas[which]
        if not replica.there:
            return
        replica.advance(now, self._pace)
        keys = [key for _, key in replica.rows]
        for key in keys:
            asked = self._asked[key]
            had = min(replica.served - asked.began, asked.output)
            if asked.first > now:
                asked.first, had = math.inf, 0.0
            asked.prompt, asked.output = asked.prompt + int(had), max(1.0, asked.output - had)
        for key in (*keys, *replica.waiting):
            self._push(now + REST, ARRIVE, key)
        self.played.broken += len(keys)
        self._routing.died(which)
        self._queue[which] = 0
        self._replicas[which] = Replica(there=False, at=now, version=replica.version + 1)
        self._push(now + self._fleet.away, COME, which)

    def _come(self, now: float, which: int) -> None:
        replica = self._replicas[which]
        replica.there, replica.at = True, now
        if now < self._fleet.seconds:
            self._push(now + self._fleet.life * self._rng.expovariate(1.0), DIE, which)

    def _summary(self) -> FleetPlayed:
        fleet, played, objective = self._fleet, self.played, self._fleet.objective
        counted = [asked for asked in self._asked if asked.arrived >= fleet.warm]
        first = np.array([asked.first - asked.arrived for asked in counted])
        tokens = np.array([asked.tokens for asked in counted])
        ended = np.array([asked.ended for asked in counted])
        begun = np.array([asked.first for asked in counted])
        with np.errstate(invalid="ignore"):
            each = (ended - begun) / np.maximum(1.0, tokens - 1)
        good = (first <= objective.ttft) & (each <= objective.tpot)
        span = fleet.seconds - fleet.warm
        played.asked, played.attained = len(counted), float(good.mean())
        played.goodput, played.offered = float(tokens[good].sum()) / span, float(tokens.sum()) / span
        played.ttft = tuple(float(np.quantile(first, q, method="higher")) for q in (0.5, 0.99))
        played.unended = int(np.isinf(ended).sum())
        played.hits = self._hits / max(1, self._looked)
        lasted = np.where(np.isfinite(ended), ended, fleet.seconds) - np.array([asked.arrived for asked in counted])
        played.mean = float(lasted.sum()) / span / fleet.replicas
        played.wait = float(np.quantile(self._waits, 0.99))
        played.decision = self._deciding / max(1, self._decided)
        return played


def play(fleet: Fleet, routing: Routing, seed: int) -> FleetPlayed:
    return Game(fleet, routing, seed).play()
