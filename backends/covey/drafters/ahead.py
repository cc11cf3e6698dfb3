"""The noise of a call's coming positions, in float32, computed for several steps at once.

The target draws with exactly rounded logarithms; a proposal need only be likely, and float32 changes a winner about
once in a million. The hash is `noise.py`'s own.
"""

from __future__ import annotations

import numpy as np

from covey.contracts.types import Floats
from covey.noise.noise import HASH_BITS, Index, Purpose, hash_tokens, keys, row_words, token_words
from covey.sampling.settings import SettingsTable

NOTHING = np.zeros((0, 0, 0), np.float32)
TOGETHER = 1 << 20  # numbers that are computed at once, though at least a step's: calls cost, and so does memory


class NoiseAhead:
    """The noise of rows with these `settings`, at `depth` positions from `positions[r]` on for row r; zero for greedy
    rows. `needed` is false when all are greedy."""

    def __init__(self, table: SettingsTable, settings: Index, positions: Index, depth: int, vocab: int) -> None:
        self._hot = np.flatnonzero(table.temperature[settings] > 0)
        self.needed = len(self._hot) > 0
        self._seeds, self._positions = table.seed[settings[self._hot]], positions[self._hot]
        self._rows, self._depth, self._vocab = len(settings), depth, vocab
        self._part: Floats = NOTHING  # the steps from `_first` on
        self._first = 0

    def of(self, step: int) -> Floats:
        """Return the noise of a step, [rows, vocab]; steps must be asked for in their order."""
        if step >= self._first + len(self._part):
            count = max(1, TOGETHER // (len(self._hot) * self._vocab))
            self._first, self._part = step, NOTHING  # both parts at once would be too much
            self._part = self._computed(step, min(count, self._depth - step))
        found: Floats = self._part[step - self._first]
        return found

    def _computed(self, step: int, count: int) -> Floats:
        steps = self._positions + np.arange(step, step + count, dtype=np.int64)[:, None]
        seeds = np.broadcast_to(self._seeds, steps.shape).reshape(-1)
        words = row_words(keys(seeds, steps.reshape(-1), Purpose.COUPLED))
        hashes = np.empty((len(seeds), self._vocab), np.int32)
        hash_tokens(token_words(self._vocab), words, hashes, np.empty_like(hashes))
        noise = hashes.astype(np.float32)
        noise += np.float32(0.5)
        noise *= np.float32(-(2.0**-HASH_BITS))
        with np.errstate(divide="ignore"):  # the largest hashes are 1 in float32, and lose as they should
            np.log1p(noise, out=noise)
            np.log(np.negative(noise, out=noise), out=noise)
        noise = np.negative(noise, out=noise).reshape(count, len(self._hot), self._vocab)
        if len(self._hot) == self._rows:
            return noise
        everyone = np.zeros((count, self._rows, self._vocab), np.float32)
        everyone[:, self._hot] = noise
        return everyone
