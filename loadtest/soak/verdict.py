"""Whether memory grew: a straight line through what was seen after the warm-up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadtest.soak.footprint import Sample

LIMIT = 0.01  # of its size, over the run after the warm-up
FEWEST = 5  # samples that say something


@dataclass(frozen=True)
class Trend:
    """One process."""

    name: str
    first: int  # bytes when the warm-up was over
    last: int
    growth: float  # what the line rises over the time after the warm-up, relative to where it begins
    ended: bool  # the process was gone before the end

    @property
    def flat(self) -> bool:
        return not self.ended and self.growth <= LIMIT


@dataclass(frozen=True)
class Verdict:
    trends: tuple[Trend, ...]
    shared: tuple[int, int]  # bytes when the warm-up was over, and at the end
    errors: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.reasons()

    def reasons(self) -> list[str]:
        """Why it did not pass."""
        found = [f"{trend.name} ended before the run did" for trend in self.trends if trend.ended]
        found += [
            f"{trend.name} grew by {100 * trend.growth:.2f} % from {trend.first / 2**20:.0f} MiB"
            for trend in self.trends
            if not trend.ended and not trend.flat
        ]
        if self.shared[1] > self.shared[0]:
            found.append(f"shared memory grew from {self.shared[0]} to {self.shared[1]} bytes")
        return found + list(self.errors)


def judge(samples: Sequence[Sample], warm_up: float, errors: Sequence[str]) -> Verdict:
    """`warm_up`: seconds after the start that say nothing."""
    kept = [sample for sample in samples if sample.at >= warm_up]
    if len(kept) < FEWEST:
        why = f"only {len(kept)} looks at the memory after the warm-up: run longer"
        return Verdict((), (0, 0), (why, *errors))
    trends = tuple(_trend(name, kept) for name in samples[0].resident)
    return Verdict(trends, (kept[0].shared, kept[-1].shared), tuple(errors))


def _trend(name: str, samples: Sequence[Sample]) -> Trend:
    seen = [(sample.at, sample.resident[name]) for sample in samples if name in sample.resident]
    if len(seen) < len(samples):
        return Trend(name, 0, 0, 0.0, ended=True)
    times, sizes = np.array(seen, float).T
    slope, start = np.polyfit(times - times[0], sizes, 1)
    return Trend(name, int(sizes[0]), int(sizes[-1]), float(slope * (times[-1] - times[0]) / start), ended=False)
