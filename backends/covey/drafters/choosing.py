"""Chooses tokens from a neural drafter's logits, for all steps of one call under the coupled rule.

A child is ranked by log q + noise, by log q when greedy. Its score is the log of its share of exp(log q + noise) over
all tokens. When greedy, that is q's probability. When sampling, it shows how clearly the child wins the race that the
target will run, which predicts acceptance better than q does. q includes bias and grammar, but not penalties. The hash
is `noise.py`'s, but the noise is in float32: a proposal need only be likely, and float32 changes a winner about once in
a million draws.
"""

from __future__ import annotations

import numpy as np

from covey.contracts.types import Floats
from covey.noise.arrays import largest_of
from covey.noise.noise import HASH_BITS, Index, Purpose, hash_tokens, keys, row_words, token_words
from covey.sampling.penalties import biased, constrained
from covey.sampling.settings import SettingsTable
from covey.text.grammar import Words

Allowed = tuple[Index, list[Words | None]]  # lanes of constrained rows, and the tokens that their grammars allow
TINY = 1e-30  # added inside logarithms to avoid log(0)
HEAD = 128  # largest logits of a row that suffice for most settings; other rows are sorted whole


class Choosing:
    """The race of one call: rows with these `settings` (see `SettingsTable`) propose from `positions` on."""

    def __init__(self, table: SettingsTable, settings: Index, positions: Index) -> None:
        self._table = table
        self._settings = settings
        heat = table.temperature[settings]
        self._hot = np.flatnonzero(heat > 0)
        self._seeds, self._positions = table.seed[settings[self._hot]], positions[self._hot]
        self._scale: Floats | None = None
        if len(self._hot) and bool((heat != 1.0).any()):
            self._scale = (1.0 / np.where(heat > 0, heat, 1.0)).astype(np.float32)[:, None]
        self._truncated = np.flatnonzero(table.truncated[settings])
        self._biased = bool(table.biased[settings].any())

    def steered(self, logits: Floats, lanes: int = 1, allowed: Allowed | None = None) -> Floats:
        """Return the first rows' logits with grammar and bias applied; all other methods expect these."""
        if allowed is not None:
            logits = constrained(logits, *allowed)
        if not self._biased:
            return logits
        steered: Floats = biased(logits, self._table, np.repeat(self._settings[: len(logits) // lanes], lanes))
        return steered

    def best(self, logits: Floats, step: int) -> tuple[Index, Floats]:
        """Return the first rows' best tokens, and their scores."""
        raced = self._raced(logits, step, 1)
        tokens = raced.argmax(axis=1)
        best = raced[np.arange(len(tokens)), tokens]
        with np.errstate(invalid="ignore"):  # a row that excludes everything
            return tokens, -np.log(np.exp(raced - best[:, None]).sum(axis=1))

    def top(self, logits: Floats, step: int, width: int, lanes: int) -> tuple[Index, Floats]:
        """Return the best `width` tokens of every lane as [rows * lanes, width], best first, and their scores, -inf for
        tokens that the row's settings exclude."""
        raced = self._raced(logits, step, lanes)
        tokens, best = largest_of(raced, min(width, raced.shape[1]))
        return tokens, best - _log_total(raced)

    def log_q(self, logits: Floats, tokens: Index, lanes: int) -> Floats:
        """Return log q of the tokens [rows * lanes, n], without noise and truncation."""
        if self._scale is not None:
            scale = self._scale[: len(logits) // lanes]
            logits = logits * (scale.repeat(lanes, 0) if lanes > 1 else scale)
        found: Floats = np.take_along_axis(logits, tokens, 1) - _log_total(logits)
        return found

    def _raced(self, logits: Floats, step: int, lanes: int) -> Floats:
        """Return logits / temperature + noise, -inf for truncated tokens; the plain logits for greedy rows."""
        if not len(self._hot):
            return logits
        rows = len(logits) // lanes
        noise = self._noise(step, rows, logits.shape[1])
        scale = None if self._scale is None else self._scale[:rows]
        if lanes > 1:
            noise = noise.repeat(lanes, 0)
            scale = None if scale is None else scale.repeat(lanes, 0)
        raced: Floats = noise + (logits if scale is None else logits * scale)
        if len(self._truncated):
            cut = np.full(rows * lanes, -np.inf, np.float32)
            mine = self._truncated[self._truncated < rows]
            which = (mine[:, None] * lanes + np.arange(lanes)).reshape(-1)
            cut[which] = least_kept(logits[which], self._table, self._settings[which // lanes])
            raced[logits < cut[:, None]] = -np.inf
        return raced

    def _noise(self, step: int, rows: int, vocab: int) -> Floats:
        """Return the noise of the first rows' positions of a step, [rows, vocab]; zero for greedy rows."""
        count = int(np.searchsorted(self._hot, rows))
        words = row_words(keys(self._seeds[:count], self._positions[:count] + step, Purpose.COUPLED))
        hashes = np.empty((count, vocab), np.int32)
        hash_tokens(token_words(vocab), words, hashes, np.empty_like(hashes))
        noise = hashes.astype(np.float32)
        noise += np.float32(0.5)
        noise *= np.float32(-(2.0**-HASH_BITS))
        with np.errstate(divide="ignore"):  # the largest hashes are 1 in float32, and lose as they should
            np.log1p(noise, out=noise)
            np.log(np.negative(noise, out=noise), out=noise)
        np.negative(noise, out=noise)
        if count == rows:
            return noise
        everyone = np.zeros((rows, vocab), np.float32)
        everyone[self._hot[:count]] = noise
        return everyone


def _log_total(values: Floats) -> Floats:
    """Return the log of each row's sum of exponentials, as a column."""
    best = values.max(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):  # a row that excludes everything
        found: Floats = best + np.log(np.exp(values - best).sum(axis=1, keepdims=True))
    return found


def least_kept(logits: Floats, table: SettingsTable, settings: Index) -> Floats:
    """Return the smallest logit that each row's top-k, top-p and min-p keep; equal ones all stay."""
    vocab = logits.shape[1]
    least = np.empty(len(logits), np.float32)
    todo = np.arange(len(logits))
    for width in (min(HEAD, vocab), vocab):
        part, setting = logits[todo], settings[todo]
        values = np.sort(np.partition(part, vocab - width, axis=1)[:, vocab - width :], axis=1)[:, ::-1]
        temperature = table.temperature[setting, None].astype(np.float32)
        rank = np.arange(width)
        top_k = np.where(table.top_k[setting] > 0, table.top_k[setting], vocab)[:, None]
        heights = (values - values[:, :1]) / temperature
        weights = np.where(rank < top_k, np.exp(heights), 0.0)
        sums = weights.cumsum(axis=1)
        total = sums[:, -1:]
        if width < vocab:
            total = np.where(top_k > width, np.exp((part - values[:, :1]) / temperature).sum(axis=1)[:, None], total)
        kept = (sums - weights < table.top_p[setting, None] * total) & (rank < top_k)
        kept &= heights >= table.log_min_p[setting, None]
        kept[:, 0] = True
        count = kept.sum(axis=1)
        settled = (count < width) | (width == vocab)
        least[todo[settled]] = values[settled, count[settled] - 1]
        todo = todo[~settled]
        if not len(todo):
            break
    return least
