"""Simulates one drafter and several targets in virtual time: the service's own queue, devices whose times are drawn.

What a level of a draft takes depends on how long the drafter idled before, as the paper measured it, and on how many
rows are joined; passes, messages and acceptance are drawn from distributions, and targets may be of two speeds. The
formula that this is held against knows means alone.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from covey.contracts.types import NO_INTS, DraftWork
from covey.star.calls import Call
from covey.star.queue import DraftQueue, QueueLimits
from covey.star.speed import Speed
from covey.wire.ledger import CALLER_BITS, GROUP_BITS, INCARNATION_BITS

SPREAD = 0.1  # standard deviation of the logarithm of a pass's time and of a level's
WAYS = 0.5  # ... and of the messages'


@dataclass(frozen=True, slots=True)
class StarTarget:
    """Describes a target. Times are in seconds."""

    verify: float
    transfer: float
    acceptance: float
    depth: int = 8
    rows: int = 1  # requests that it decodes at once


@dataclass(slots=True)
class StarPlayed:
    """Figures by target, and of the drafter; seconds and tokens of the time that was measured."""

    seconds: float = 0.0
    tokens: list[int] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    service: list[float] = field(default_factory=list)
    waited: float = 0.0
    calls: int = 0
    idle: float = 0.0
    steps: list[float] = field(default_factory=list)
    away: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Return the tokens per second of all targets."""
        return sum(self.tokens) / self.seconds


def play(
    devices: Sequence[StarTarget],
    step: Callable[[int, float], float],
    limits: QueueLimits,
    rng: np.random.Generator,
    seconds: float,
) -> StarPlayed:
    """Play so many seconds. `step(rows, gap)` is a level of a draft for so many rows, so long after the last. The first
    tenth of the time does not count."""
    queue, speed = DraftQueue(limits), Speed()
    played = StarPlayed(tokens=[0] * len(devices), rounds=[0] * len(devices), service=[0.0] * len(devices))
    events = [(float(rng.uniform(0, device.verify)), target) for target, device in enumerate(devices)]
    heapq.heapify(events)
    now = free = 0.0
    warm, began, counts = seconds / 10, 0.0, False
    while now < seconds:
        while events and (events[0][0] <= free or not len(queue)):
            now, target = heapq.heappop(events)
            queue.put(Call(_work(target, devices[target]), str(target), now))
        now = max(free, now)
        if now >= warm and not counts:
            counts, began = True, now
        calls = queue.take(now, speed, shared=limits.rows > 1)
        rows, depth = sum(call.beams for call in calls), max(call.depth for call in calls)
        level = step(rows, now - free) * _spread(rng, SPREAD)
        ended = now + depth * level
        if counts:
            played.idle += now - max(free, began)
            played.steps.append(level)
        speed.update(rows, depth, ended - now)
        queue.served(calls, ended - now)
        for call in calls:
            target = int(call.caller)
            device = devices[target]
            away = device.verify * _spread(rng, SPREAD) + device.transfer * _spread(rng, WAYS)
            heapq.heappush(events, (ended + away, target))
            if counts:
                hits = rng.random((device.rows, device.depth)) < device.acceptance
                played.tokens[target] += int(np.cumprod(hits, axis=1).sum()) + device.rows
                played.rounds[target] += 1
                played.service[target] += (ended - now) * call.beams / rows
                played.waited += now - call.arrived
                played.calls += 1
                played.away.append(away)
        free = now = ended
    played.seconds = free - began
    return played


def _spread(rng: np.random.Generator, sigma: float) -> float:
    """Return a factor whose mean is 1."""
    return float(math.exp(rng.normal(-sigma * sigma / 2, sigma)))


def _work(target: int, device: StarTarget) -> DraftWork:
    rows = np.zeros(device.rows, np.int32)
    return DraftWork(
        tags=np.arange(device.rows, dtype=np.int32),
        keep=rows,
        offsets=np.zeros(device.rows + 1, np.int32),
        tokens=NO_INTS,
        depth=rows + device.depth,
        width=rows + 1,
        rounds=rows,
        origin=target << INCARNATION_BITS + CALLER_BITS - GROUP_BITS,  # each is a server of its own
    )
