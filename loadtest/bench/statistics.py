"""Has the statistics of benches: medians, spread, paired ratios, an unbiased best static choice, and loops in greedy
text."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

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


def median_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> float | None:
    paired = ratios(numerators, denominators)
    return median(paired) if paired else None


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that at least `share` of the sample does not exceed."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


@dataclass(frozen=True, slots=True)
class Best:
    """Says how much the best of several static choices gains over a baseline. `low` and `high` span the paired ratios
    of the repetitions it was not picked on."""

    ratio: float
    low: float
    high: float
    picked: tuple[str, ...]  # on odd repetitions, and on even ones
    opponents: tuple[str, ...]  # of the baseline, likewise


def best_over(
    rates: Mapping[str, Sequence[float]], baseline: Mapping[str, Sequence[float]], *, single: bool = False
) -> Best | None:
    """Return the short form of `crosswise`; None where that finds nothing."""
    found, picked, opponents = crosswise(rates, baseline, single=single)
    return Best(median(found), min(found), max(found), picked, opponents) if found else None


def crosswise(
    rates: Mapping[str, Sequence[float]], baseline: Mapping[str, Sequence[float]], *, single: bool = False
) -> tuple[list[float], tuple[str, ...], tuple[str, ...]]:
    """Pick the fastest choice, and the fastest baseline, on odd repetitions and compare them on even ones; then
    swap. The best of several noisy runs flatters itself; on repetitions it was not picked on it cannot. The ratios of
    all repetitions, and who was picked on either half; nothing when there are not two repetitions. With
    `single` one is enough, of which the best is picked on the runs that it is compared on."""
    count = min((len(values) for values in [*rates.values(), *baseline.values()]), default=0)
    if count == 1 and single and rates and baseline:
        chosen, opponent = (_fastest(each, range(1)) for each in (rates, baseline))
        return [rates[chosen][0] / baseline[opponent][0]], (chosen,), (opponent,)
    if count < 2:
        return [], (), ()
    found: list[float] = []
    picked, opponents = [], []
    for odd in (1, 0):
        chosen = _fastest(rates, range(odd, count, 2))
        opponent = _fastest(baseline, range(odd, count, 2))
        picked.append(chosen)
        opponents.append(opponent)
        judged = range(1 - odd, count, 2)
        found += ratios([rates[chosen][index] for index in judged], [baseline[opponent][index] for index in judged])
    return found, tuple(picked), tuple(opponents)


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def interval(
    values: Sequence[float], seed: int = 0, of: Callable[[Sequence[float]], float] = geometric_mean
) -> tuple[float, float]:
    """Return the interval of the mean at 95 %, by bootstrap."""
    rng = random.Random(seed)
    means = sorted(of(rng.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return means[round(0.025 * RESAMPLES)], means[round(0.975 * RESAMPLES) - 1]


def _fastest(rates: Mapping[str, Sequence[float]], repetitions: range) -> str:
    return max(rates, key=lambda name: median([rates[name][index] for index in repetitions]))


def loops(tokens: Sequence[int], cycle: int = CYCLE) -> bool:
    """Return whether the same `cycle` tokens occur twice: the text repeats itself, and drafting it proves nothing."""
    seen: set[tuple[int, ...]] = set()
    for end in range(cycle, len(tokens) + 1):
        window = tuple(tokens[end - cycle : end])
        if window in seen:
            return True
        seen.add(window)
    return False
