"""Statistics of benches: medians, spread, paired ratios, an unbiased best static choice, and loops in greedy text."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median, quantiles

RESAMPLES = 2000
CYCLE = 32  # tokens; a request whose output holds the same 32 tokens twice is looping


@dataclass(frozen=True, slots=True)
class Spread:
    """Holds a median and how far its sample reaches."""

    median: float
    low: float  # first quartile
    high: float  # third quartile
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """Return the spread of a sample; None if it is empty."""
        if not values:
            return None
        if len(values) == 1:
            return cls(values[0], values[0], values[0], 1)
        low, _, high = quantiles(values, n=4, method="inclusive")
        return cls(median(values), low, high, len(values))


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """Return ratios by repetition: both were measured minutes apart at most, so drift cancels."""
    return [above / below for above, below in zip(numerators, denominators) if below > 0]


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that at least `share` of the sample does not exceed."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


@dataclass(frozen=True, slots=True)
class Best:
    """The gain of the best of several choices over the best baseline, in paired ratios of repetitions."""

    ratios: tuple[float, ...]
    picked: tuple[str, ...]  # on odd repetitions, and on even ones
    opponents: tuple[str, ...]  # of the baseline, likewise

    @property
    def ratio(self) -> float:
        return median(self.ratios)

    @property
    def span(self) -> list[float]:
        return [min(self.ratios), max(self.ratios)]

    @property
    def median_and_interval(self) -> list[float]:
        """Return the median and its interval at 95 %."""
        return [self.ratio, *interval(self.ratios, of=median)]


def best_over(
    rates: Mapping[str, Sequence[float]], baseline: Mapping[str, Sequence[float]], *, single: bool = False
) -> Best | None:
    """Pick the fastest choice, and the fastest baseline, on odd repetitions and compare them on even ones; then swap.
    The best of several noisy runs flatters itself, but not on repetitions on which it was not picked. Return None if
    there are not two repetitions, or no choice. With `single` one is enough, and the best is compared on the runs on
    which it was picked."""
    count = min(len(values) for values in [*rates.values(), *baseline.values()]) if rates and baseline else 0
    halves = ((range(1, count, 2), range(0, count, 2)), (range(0, count, 2), range(1, count, 2)))
    if count == 1 and single:
        halves = ((range(1), range(1)),)
    elif count < 2:
        return None
    found: list[float] = []
    picked, opponents = [], []
    for picking, judged in halves:
        chosen, opponent = (_fastest(each, picking) for each in (rates, baseline))
        picked.append(chosen)
        opponents.append(opponent)
        found += ratios([rates[chosen][index] for index in judged], [baseline[opponent][index] for index in judged])
    return Best(tuple(found), tuple(picked), tuple(opponents)) if found else None


def interval(values: Sequence[float], of: Callable[[Sequence[float]], float] = geometric_mean) -> tuple[float, float]:
    """Return the interval of the mean at 95 %, by bootstrap."""
    rng = random.Random(0)
    means = sorted(of(rng.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return means[round(0.025 * RESAMPLES)], means[round(0.975 * RESAMPLES) - 1]


def _fastest(rates: Mapping[str, Sequence[float]], repetitions: range) -> str:
    return max(rates, key=lambda name: median([rates[name][index] for index in repetitions]))


def loops(tokens: Sequence[int]) -> bool:
    """Return whether the same `CYCLE` tokens occur twice: the text repeats itself, and drafting it proves nothing."""
    seen: set[tuple[int, ...]] = set()
    for end in range(CYCLE, len(tokens) + 1):
        window = tuple(tokens[end - CYCLE : end])
        if window in seen:
            return True
        seen.add(window)
    return False
