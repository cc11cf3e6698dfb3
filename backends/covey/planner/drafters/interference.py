"""Measures how much longer rounds become for each second that drafters read meanwhile.

Reading costs all of its time if drafters share a device with the target or with one another, and almost nothing on idle
processors. A reading call belongs to the round in which it began, as far as it overlaps that round's pass. The rest
belongs to the next round. The price is the slope of a line through

    x = seconds read in a round / its expected seconds        y = its seconds / its expected seconds - 1

and old rounds are forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable

MEMORY = 300.0  # rounds that count
LEAST = 0.1  # the lowest price, as caches and memory are always shared
DOUBT = 1.0  # weight of the prior price of 1, in squared x
FAR = 3.0  # the largest y: a round that takes even longer has another cause
MOST = 4.0  # the highest price: on few cores the call itself costs as well


class Interference:
    """Owns the means and sums of products that the line is fitted to."""

    def __init__(self) -> None:
        self._rounds = 0.0
        self._x = self._y = self._xx = self._xy = 0.0  # means, and sums of products about them
        # The last round: its expected seconds or 0, its seconds, seconds read in it, and seconds left for reading.
        self._expected = self._whole = self._read = self._overlap = 0.0

    @property
    def price(self) -> float:
        return min(MOST, max(LEAST, (self._xy + DOUBT) / (self._xx + DOUBT)))

    def add(self, whole: float, overlap: float, read: Iterable[float]) -> None:
        """Add a round of `whole` seconds. Drafters may read in its last `overlap` seconds. `read` holds the seconds of
        each reading call that has ended since the last round drafted."""
        earlier, now = 0.0, 0.0
        for seconds in read:
            earlier += min(seconds, self._overlap)
            now += max(0.0, seconds - self._overlap)
        if self._expected > 0.0:
            self._learn((self._read + earlier) / self._expected, min(self._whole / self._expected - 1.0, FAR))
        self._expected, self._whole, self._read, self._overlap = 0.0, whole, now, overlap

    def expected(self, seconds: float) -> None:
        """Note the expected time of the last round; a round without it teaches nothing."""
        self._expected = seconds

    def _learn(self, x: float, y: float) -> None:
        kept = min(1.0, MEMORY / (self._rounds + 1.0))
        self._rounds, self._xx, self._xy = kept * self._rounds + 1.0, kept * self._xx, kept * self._xy
        away = x - self._x
        self._x += away / self._rounds
        self._y += (y - self._y) / self._rounds
        self._xx += away * (x - self._x)
        self._xy += away * (y - self._y)
