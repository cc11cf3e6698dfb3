"""Gives the arrival times of an open loop: the benches' own loads over `loadtest.arrivals`. Knows no prompts."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Sequence

from loadtest import arrivals
from loadtest.arrivals import Arrival, Trace

AZURE, TWO_PEAKS = "azure", "two_peaks"
MEAN = 0.85  # of the rate without speculation, on average in the trace: its own peak is half as much again
LOW, HIGH = 0.1, 1.3  # of the same, between the peaks and in them

Times = tuple[float, ...]  # seconds after the start, in order


def around(capacity: float, seconds: float, trace: Sequence[Arrival] | None, seed: int) -> dict[str, Times]:
    """Return two peaks, and the trace if there is one, with quiet and crowded times. They are scaled to `capacity`, the
    requests a second that can be served without speculation."""
    made = {TWO_PEAKS: two_peaks(LOW * capacity, HIGH * capacity, seconds, seed)}
    if trace is not None:
        made[AZURE] = recorded(trace, MEAN * capacity, seconds, seed)
    return {load: times for load, times in made.items() if times}


def poisson(rate: float, count: int, seed: int) -> Times:
    """Return the times of this many requests, `rate` a second on average."""
    shape = arrivals.parse(f"poisson:{rate}")
    return _times(itertools.islice(shape.arrivals(math.inf, _rng(seed, f"poisson {rate}")), count))


def two_peaks(low: float, high: float, seconds: float, seed: int) -> Times:
    """Return when requests come, `low` a second, rising to `high` at a quarter and at three quarters."""
    return _times(arrivals.parse(f"peaks:{low},{high}").arrivals(seconds, _rng(seed, "peaks")))


def recorded(trace: Sequence[Arrival], rate: float, seconds: float, seed: int) -> Times:
    """Compress a whole trace into `seconds`, thinned at random to `rate` requests a second. The rise and fall of its
    hours stay; its lengths are left out."""
    count = min(len(trace), max(2, round(rate * seconds)))
    thinned = sorted(_rng(seed, "trace").sample(list(trace), count), key=lambda arrival: arrival.at)
    return _times(Trace(recorded=thinned).scaled(count / seconds, 1.0).recorded)


def at_rate(rate: float, count: int, trace: Sequence[Arrival] | None, seed: int) -> Times:
    """Return the times of this many requests at a rate: by the trace, or Poisson's if there is none."""
    return poisson(rate, count, seed) if trace is None else recorded(trace, rate, count / rate, seed)


def _times(found: Iterable[Arrival]) -> Times:
    return tuple(arrival.at for arrival in found)


def _rng(seed: int, purpose: str) -> random.Random:
    return random.Random(f"{seed} {purpose}")
