"""Measures how much longer rounds become for each second that drafters read meanwhile.

Reading costs the whole of its time where drafters share a device with the target or with one another, and hardly any
where processors stand idle meanwhile. What a call read beside the pass in which it began belongs to that round, the
rest to the next one. A line through

    x = seconds read in a round / seconds expected of it        y = seconds that it took / seconds expected - 1

has the price as its slope; rounds long ago are forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable

MEMORY = 300.0  # rounds that count
LEAST = 0.1  # what is charged at least, as caches and memory are always shared
DOUBT = 1.0  # squared x that a price of 1, which holds before anything was seen, is worth
FAR = 3.0  # a round that takes longer than expected by more than this tells of something else
MOST = 4.0  # what is charged at most: on few cores a call costs the way to the drafter and back, too


class Interference:
    """Owns what the line is fitted to: means, and sums of products."""

    def __init__(self) -> None:
        self._rounds = 0.0
        self._x = self._y = self._xx = self._xy = 0.0  # means, and sums of products about them
        # Of the last round: seconds expected, or 0; that it took; that were read in it; and that were left for reading.
        self._expected = self._whole = self._read = self._overlap = 0.0

    @property
    def price(self) -> float:
        return min(MOST, max(LEAST, (self._xy + DOUBT) / (self._xx + DOUBT)))

    def add(self, whole: float, overlap: float, read: Iterable[float]) -> None:
        """Take a round of `whole` seconds, whose last `overlap` seconds drafters may read in, and the seconds of each
        reading call that has ended since the round before drafted."""
        earlier, now = 0.0, 0.0
        for seconds in read:
            earlier += min(seconds, self._overlap)
            now += max(0.0, seconds - self._overlap)
        if self._expected > 0.0:
            self._learn((self._read + earlier) / self._expected, min(self._whole / self._expected - 1.0, FAR))
        self._expected, self._whole, self._read, self._overlap = 0.0, whole, now, overlap

    def expected(self, seconds: float) -> None:
        """Note how long the last round was expected to take; a round without such a note teaches nothing."""
        self._expected = seconds

    def _learn(self, x: float, y: float) -> None:
        kept = min(1.0, MEMORY / (self._rounds + 1.0))
        self._rounds, self._xx, self._xy = kept * self._rounds + 1.0, kept * self._xx, kept * self._xy
        away = x - self._x
        self._x += away / self._rounds
        self._y += (y - self._y) / self._rounds
        self._xx += away * (x - self._x)
        self._xy += away * (y - self._y)
