"""What the bench of memory that breathes emulates: pairs, loads, and what a pool that is always full could gain.

A pair's drafters hold weights and KV alone, as on a device whose processes share the rest: its profile's `drafter_mb`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from covey.planner.cost_table import Surface
from loadtest.bench import loads
from loadtest.bench.emulated_pairs import PAIRS, Pair, requests
from loadtest.bench.emulated_serving import Served
from loadtest.bench.session import QUICK

FIVE, SEVEN = "emulated-7b-five", "emulated-7b"
SELDOM = 0.1  # how often drafts are right where they are of no use
LOWEST = 0.1  # share of all blocks below which too few are free: Nightjar's best
SWEEP = (0.02, 0.05, LOWEST, 0.2, 0.3)
LOW, HIGH = 0.1, 2.5  # requests a second between the peaks and in them, of what plain decoding can serve
CONSTANT = 8.0  # requests a second, more than the pair of five can serve
RATES, AT_A_RATE, MANY_ROWS = (5.0, 15.0, 25.0, 35.0), 480, 256  # Nightjar's rates and prompts; vLLM's limit
FACTORS = (0.7, 1.3)
PRINTED = 5982.6  # tokens a second of Nightjar's 7B pair at the last of its rates, without offload (Figure 13)
DRAWN = 4096  # requests, for their means


@dataclass(frozen=True)
class Case:
    """An emulated pair, and when its drafters leave."""

    name: str
    pair: Pair
    length_policy: str = "covey"
    low: float = LOWEST
    rate: float = 0.0  # requests a second; 0: two peaks

    def times(self, count: int, seed: int) -> loads.Times:
        """When `count` requests come, about."""
        if self.rate:
            return loads.poisson(self.rate, count, seed)
        capacity = self.pair.capacity()
        return loads.two_peaks(LOW * capacity, HIGH * capacity, self._seconds(count), seed)

    def throughput(self, served: Served, count: int) -> float:
        """Of the peaks, while more comes than can be served."""
        if self.rate:
            return served.throughput
        whole, angle = self._seconds(count), math.asin(((1 - LOW) / (HIGH - LOW)) ** 0.25)
        return served.throughput_within(
            [((turn + angle / math.pi) * whole / 2, (turn + 1 - angle / math.pi) * whole / 2) for turn in range(2)]
        )

    def closed_form(self) -> float:
        """What a pool with all drafters' bytes serves over what it serves without."""
        emulated, held = self.pair.profile.emulated, len(self.pair.drafters) * self.pair.profile.emulated.drafter_mb
        gained = (held << 20) // (emulated.kv_token_bytes * self.pair.profile.target.block_size)
        return serves(self.pair, gained) / serves(self.pair)

    def _seconds(self, count: int) -> float:
        return count / ((LOW + (HIGH - LOW) * 3 / 8) * self.pair.capacity())  # the mean of a sine's fourth power is 3/8


def serves(pair: Pair, gained: int = 0) -> float:
    """Tokens a second of plain decoding while the pool, with so many blocks more, is full. A request that runs is more
    often a long one than a request that comes, and half of its last block is empty."""
    drawn = requests(pair, DRAWN, 0)
    prompts, outputs = sum(each.prompt for each in drawn), sum(each.output for each in drawn)
    size, budget = pair.profile.target.block_size, pair.profile.scheduler.token_budget
    held = sum(each.output * (each.prompt + each.output / 2) for each in drawn) / outputs + size / 2
    rows = min(pair.profile.scheduler.max_running, (pair.blocks + gained) * size / held)
    verify = Surface(pair.table.verify)
    below = math.floor(rows)
    time = verify(below, below) + (rows - below) * (verify(below + 1, below + 1) - verify(below, below))
    return outputs / (outputs * time / rows + prompts * verify(1, budget) / budget)


def cases(size: str) -> Iterator[Case]:
    """What is emulated; the first is that of the bench's key."""
    pairs = {pair.name: pair for pair in PAIRS}
    seldom = _seldom_right(pairs[FIVE])
    key = f"{FIVE}, drafts seldom right"
    yield Case(key, seldom)
    if size == QUICK:
        return
    yield Case(f"{key}, {CONSTANT:g}/s", seldom, rate=CONSTANT)
    yield from _varied(key, seldom)
    for name in (FIVE, SEVEN):
        yield Case(f"{name}, as they are", pairs[name])
        yield Case(f"{name}, as they are, nightjar", pairs[name], "nightjar")
    many = _with_rows(pairs[SEVEN], MANY_ROWS)
    fitted = _refitted(many)
    for rate in RATES:
        yield Case(at_rate(rate, fitted=False), many, rate=rate)
        yield Case(at_rate(rate, fitted=True), fitted, rate=rate)
    yield from _varied(at_rate(RATES[-1], fitted=True), fitted, RATES[-1])
    for low in SWEEP:
        if low != LOWEST:
            yield Case(at_low(low), seldom, low=low)


def at_low(low: float) -> str:
    """The case of the key with another threshold."""
    return f"{FIVE}, drafts seldom right" + (f", low {low:g}" if low != LOWEST else "")


def at_rate(rate: float, *, fitted: bool) -> str:
    """The case of the 7B pair at one of Nightjar's rates."""
    return f"{SEVEN}{' refitted' if fitted else ''}, {MANY_ROWS} rows, {rate:g}/s"


def _varied(name: str, pair: Pair, rate: float = 0.0) -> Iterator[Case]:
    for factor in FACTORS:
        yield Case(f"{name}, rows cost x {factor}", _with_slope(pair, factor), rate=rate)
        yield Case(f"{name}, drafters hold x {factor}", _with_bytes(pair, factor), rate=rate)


def _changed(pair: Pair, **facts: object) -> Pair:
    made = replace(pair)
    made.__dict__.update(pair.__dict__ | facts)  # cached properties, as if they had been asked for
    return made


def _seldom_right(pair: Pair) -> Pair:
    return _changed(pair, rates={name: dict.fromkeys(rates, (SELDOM,)) for name, rates in pair.rates.items()})


def _with_rows(pair: Pair, rows: int) -> Pair:
    scheduler = replace(pair.profile.scheduler, max_running=rows)
    return _changed(pair, profile=replace(pair.profile, scheduler=scheduler))


def _refitted(pair: Pair) -> Pair:
    """With rows and tokens that cost what makes plain decoding as fast as Nightjar prints."""
    low, high = 0.0, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if serves(_with_slope(pair, middle)) > PRINTED else (low, middle)
    return _with_slope(pair, high)


def _with_slope(pair: Pair, factor: float) -> Pair:
    """What a pass takes beyond its cheapest one, times a factor."""
    least = min(seconds for _, _, seconds in pair.table.verify)
    verify = tuple((rows, tokens, least + factor * (time - least)) for rows, tokens, time in pair.table.verify)
    return _changed(pair, table=replace(pair.table, verify=verify))


def _with_bytes(pair: Pair, factor: float) -> Pair:
    emulated = replace(pair.profile.emulated, drafter_mb=round(factor * pair.profile.emulated.drafter_mb))
    return _changed(pair, profile=replace(pair.profile, emulated=emulated))
