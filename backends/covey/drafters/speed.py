"""The speed of a shared drafter: t_s, the recent time of one draft level, by number of beams."""

from __future__ import annotations

FORGETS = 0.1  # weight of the newest sample
DOUBT = 0.1  # part that the estimate loses each time it refuses a call
MOST = 1 << 30  # levels: no limit
MARGIN = 1.25  # times the prediction, where a late answer is worse than waiting


class Speed:
    """Owns the measurements. Predicts 0 s before the first one."""

    def __init__(self) -> None:
        self._steps: dict[int, float] = {}  # by the logarithm of the beams

    def update(self, beams: int, depth: int, seconds: float) -> None:
        """Learn from a draft's time without catch-up."""
        if beams and depth:
            bucket, step = beams.bit_length(), seconds / depth
            self._steps[bucket] = step + (1 - FORGETS) * (self._steps.get(bucket, step) - step)

    def step(self, beams: int) -> float:
        """Return t_s of the nearest measured number of beams; 0 before any measurement. Does not mutate."""
        if not self._steps:
            return 0.0
        return self._steps[self._nearest(beams)]

    def doubt(self, beams: int) -> None:
        """Lower the estimate for `beams` beams: it has refused a call, and may be out of date."""
        if self._steps:
            self._steps[self._nearest(beams)] *= 1 - DOUBT

    def seconds(self, beams: int, depth: int) -> float:
        """Return the expected seconds of a draft, with a margin."""
        return MARGIN * depth * self.step(beams)

    def depth(self, beams: int, seconds: float) -> int:
        """Return the deepest draft that takes at most `seconds` with the margin; at least 1."""
        each = self.seconds(beams, 1)
        return max(1, int(min(seconds / each, MOST))) if each else MOST

    def _nearest(self, beams: int) -> int:
        bucket = beams.bit_length()
        return min(self._steps, key=lambda met: (abs(met - bucket), -met))
