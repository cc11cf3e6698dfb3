"""Chooses to which replica a request goes, by what a router knows of them. These policies are others', for simulations:
Covey itself routes between no hosts.

`RoundRobin` is what a Kubernetes Service does on average, `LeastQueue` a proxy that counts requests, and `Prefix` is
Ray Serve's PrefixCacheAffinityRouter: while the longest and the shortest queue of all replicas differ by no more than
a threshold, a request goes where its prefix has been sent before, to the better of two such replicas drawn at random; a
prefix that nobody has been sent goes to whoever has the fewest; and while queues differ by more, to the better of two.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt


class View:
    """Holds what one router believes: the requests that each replica has, and which replicas are there."""

    def __init__(self, replicas: int, rng: random.Random) -> None:
        self.queue = np.zeros(replicas, np.int64)
        self.there = np.ones(replicas, bool)
        self.turn = rng.randrange(replicas)
        self.rng = rng
        self._listed: list[int] = list(range(replicas))

    def told(self, queue: npt.NDArray[np.int64], there: npt.NDArray[np.bool_]) -> None:
        """Take a report of all replicas."""
        self.queue[:] = queue
        self.there[:] = there
        self._listed = np.flatnonzero(there).tolist()

    def gone(self, replica: int) -> None:
        """Send nothing to a replica that refused a connection until the next report."""
        if self.there[replica]:
            self.there[replica] = False
            self._listed.remove(replica)

    @property
    def listed(self) -> Sequence[int]:
        """Return the replicas that are there; all if none seems to be."""
        return self._listed or range(len(self.there))

    def better(self, among: Sequence[int]) -> int:
        """Return the better of two random ones."""
        one, other = self.rng.choice(among), self.rng.choice(among)
        return one if self.queue[one] <= self.queue[other] else other


class Routing(Protocol):
    """Chooses replicas, as one policy for all routers of a fleet."""

    def choose(self, view: View, prefix: int) -> int: ...

    def routed(self, prefix: int, replica: int) -> None:
        """Note that a request has gone there."""

    def died(self, replica: int) -> None:
        """Forget what a dead replica had been sent."""


class RoundRobin:
    def choose(self, view: View, prefix: int) -> int:  # noqa: ARG002 - whatever is asked
        listed = view.listed
        view.turn += 1
        return listed[view.turn % len(listed)]

    def routed(self, prefix: int, replica: int) -> None:
        """Nothing is kept."""

    def died(self, replica: int) -> None:
        """Nothing is kept."""


class LeastQueue(RoundRobin):
    """Sends to the shortest queue; draws between equal ones, as routers that all took the first would flood it."""

    def choose(self, view: View, prefix: int) -> int:  # noqa: ARG002 - whatever is asked
        queue = np.where(view.there, view.queue, np.iinfo(np.int64).max)
        return view.rng.choice(np.flatnonzero(queue == queue.min()).tolist())


class Prefix:
    """Sends a request where its prefix was sent before, which one actor tells all routers at once."""

    def __init__(self, replicas: int, threshold: float) -> None:
        self.threshold = threshold
        self._holders: dict[int, set[int]] = {}
        self._sent = np.zeros(replicas, np.int64)  # prefixes, by replica

    def choose(self, view: View, prefix: int) -> int:
        queue = view.queue[view.there]
        if not len(queue) or queue.max() - queue.min() > self.threshold:
            return view.better(view.listed)
        holders = [replica for replica in self._holders.get(prefix, ()) if view.there[replica]]
        if holders:
            return view.better(holders)
        return int(np.where(view.there, self._sent, np.iinfo(np.int64).max).argmin())

    def routed(self, prefix: int, replica: int) -> None:
        holders = self._holders.setdefault(prefix, set())
        if replica not in holders:
            holders.add(replica)
            self._sent[replica] += 1

    def died(self, replica: int) -> None:
        for holders in self._holders.values():
            holders.discard(replica)
        self._sent[replica] = 0
