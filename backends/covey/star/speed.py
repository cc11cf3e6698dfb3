"""The speed of a shared drafter: t_s, the time of a level of a draft, by the number of its beams, as measured of
late."""

from __future__ import annotations

FORGETS = 0.1  # weight of the newest
DOUBT = 0.1  # part of a prediction that is taken off each time nobody is served because of it
MOST = 1 << 30  # levels: no bound
MARGIN = 1.25  # of what is predicted, where being late is worse than waiting


class Speed:
    """Owns the measurements; knows nothing before the first, and then predicts no time at all."""

    def __init__(self) -> None:
        self._steps: dict[int, float] = {}  # by the logarithm of the beams

    def update(self, beams: int, depth: int, seconds: float) -> None:
        """Learn how long a draft took, without its catch-up."""
        if beams and depth:
            bucket, step = beams.bit_length(), seconds / depth
            self._steps[bucket] = step + (1 - FORGETS) * (self._steps.get(bucket, step) - step)

    def step(self, beams: int) -> float:
        """Return t_s, that of the nearest number of beams that was met; 0 before any was. Does not mutate."""
        if not self._steps:
            return 0.0
        return self._steps[self._nearest(beams)]

    def doubt(self, beams: int) -> None:
        """Lower the estimate for so many beams. A call that asked for them was not served since a level would take too
        long, which may no longer be so."""
        if self._steps:
            self._steps[self._nearest(beams)] *= 1 - DOUBT

    def seconds(self, beams: int, depth: int) -> float:
        """Return the time of a draft, with a margin."""
        return MARGIN * depth * self.step(beams)

    def depth(self, beams: int, seconds: float) -> int:
        """Return how many tokens deep a draft can be that takes so many seconds, with the margin; at least 1."""
        each = self.seconds(beams, 1)
        return max(1, int(min(seconds / each, MOST))) if each else MOST

    def _nearest(self, beams: int) -> int:
        bucket = beams.bit_length()
        return min(self._steps, key=lambda met: (abs(met - bucket), -met))
